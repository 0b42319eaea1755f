//! Requests that no honest client sends. Each has its answer, sells nothing that it should not, and
//! leaves nothing in Redis but a log that expires.

use test_support::Redis;
use test_support::raw_client::RawClient;

use crate::{alone, on_redis, stop, ttl};

/// Part of each user id. No error and no log may show it.
const USER: &str = "Lysistrata";
const ORDER: &str = "POST /seckill/iphone/orders";

/// A request, and the status of its answer: 0 if the server closes without one.
type Case = (&'static str, Vec<u8>, u16);

/// A request with these header lines.
fn request(name: &'static str, line: &str, headers: impl AsRef<[u8]>, status: u16) -> Case {
    let start = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    (name, [start.as_bytes(), headers.as_ref(), b"\r\n"].concat(), status)
}

/// An order of the user that this header value names.
fn by(name: &'static str, user: impl AsRef<[u8]>, status: u16) -> Case {
    request(name, ORDER, [b"x-user-id: ", user.as_ref(), b"\r\n"].concat(), status)
}

/// An order with these header lines, and a user of its own in place of `@`.
fn order(name: &'static str, headers: &str, status: u16) -> Case {
    let user = format!("{USER}-{}", name.replace(' ', "-"));
    request(name, ORDER, headers.replace('@', &user) + "\r\n", status)
}

fn cases() -> Vec<Case> {
    let get = |name, path: &str, status| request(name, &format!("GET {path}"), "", status);
    let of_order = |name, order: &str| {
        let user = format!("x-user-id: {USER}\r\n");
        request(name, &format!("GET /orders/{order}"), user, 404)
    };
    let of_sku = |name, sku: &str| {
        let user = format!("x-user-id: {USER}-{name}\r\n");
        request(name, &format!("POST /seckill/{sku}/orders"), user, 404)
    };
    let (nil, long) = ("00000000-0000-0000-0000-000000000000", USER.repeat(100_000));
    let raw = |name, bytes: &[u8], status| (name, bytes.to_vec(), status);
    vec![
        request("no user", ORDER, "", 401),
        by("an empty user", "", 401),
        by("spaces", " \t ", 401),
        order("twice the same", "x-user-id: @\r\nX-USER-ID: @", 400),
        order("twice and one empty", "x-user-id:\r\nx-user-id: @", 400),
        by("latin-1", b"Lysistrat\xeb", 400),
        by("an overlong encoding", b"Lysistrata\xc0\xaf", 400),
        by("the replacement character", "Lysistrata\u{fffd}", 400),
        by("what hashes begin with", "sha256:Lysistrata", 400),
        by("129 bytes", &long[..129], 400),
        by("128 bytes", &long[..128], 201),
        by("1 MB", &long, 431),
        by("every script", "Lysistrata-Λυσιστράτη-利西翠姐-🕊", 201),
        by("a comma", "Lysistrata, Lampito", 201),
        by("braces", "{Lysistrata}{}", 201),
        by("the name of another's log", "Lampito}:user:60s", 201),
        by("its escaped name", "Lampito%7D:user:60s", 201),
        by("commands", "Lysistrata; FLUSHALL *1 $8 $(id) `id` ../../ %s%n", 201),
        by("NUL", "Lysi\0strata", 400),
        by("a carriage return", "Lysi\rstrata", 400),
        by("a folded line", "Lysi\r\n strata", 400),
        of_sku("another SKU", "android"),
        of_sku("the SKU in capitals", "IPHONE"),
        of_sku("a SKU with NUL", "iphone%00"),
        of_sku("a SKU in braces", "%7Biphone%7D"),
        of_sku("a SKU like a log", "=Lampito"),
        of_sku("the key of a stock", "iphone%7D:stock"),
        of_sku("a SKU of no UTF-8", "%ff"),
        of_sku("two SKUs", "a/b"),
        of_order("an unknown order", &format!("iphone.{nil}")),
        of_order("an order of another form", &format!("iphone.urn:uuid:{nil}")),
        of_order("an order of any kind", "*"),
        get("an order and no user", &format!("/orders/iphone.{nil}"), 401),
        get("a path above", "/../../etc/passwd", 404),
        get("a path of 70 kB", &format!("/seckill/{}", "x".repeat(70_000)), 431),
        get("a control character", "/seckill/iphone\x01", 400),
        raw("nothing", b"", 0),
        raw("half a head", b"POST /seckill/iphone/orders HTTP/1.1\r\nx-user", 0),
        raw("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
        raw("a greeting of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        raw("a command of Redis", b"*1\r\n$8\r\nFLUSHALL\r\n", 400),
        raw("no such version", b"GET / HTTP/9.9\r\nhost: x\r\n\r\n", 400),
        request("a tunnel", "CONNECT evil:443", "", 404),
        request("a method of its own", "BUY /seckill/iphone/orders", "", 405),
        order("101 headers", &format!("x-user-id: @{}", "\r\na: b".repeat(101)), 431),
        order("a negative length", "x-user-id: @\r\ncontent-length: -1", 400),
        order("two lengths", "x-user-id: @\r\ncontent-length: 1\r\ncontent-length: 2", 400),
        // The server does not read the body of an order, so it does not wait for one either.
        order("a body that never comes", "x-user-id: @\r\ncontent-length: 1000000000000", 201),
        order("no chunks", "x-user-id: @\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n", 201),
        // The limit by address believes the peer's, and no header.
        order("a forged address", "x-user-id: @\r\nx-forwarded-for: 6.6.6.6", 201),
    ]
}

/// Puts every case to a server, and then looks at what they have left behind.
async fn hold(flags: &[&str], cases: &[Case]) {
    let redis = Redis::start().await;
    let flags = [flags, &["--ip-quota", "1000/60s", "--stock", "iphone=1000"]].concat();
    for server in [alone(&flags), on_redis(&redis, &flags)] {
        for (name, request, expected) in cases {
            let mut client = RawClient::connect(&server).await;
            client.write(request).await;
            if [0, 400, 431].contains(expected) {
                // Else the server would wait for more of it.
                client.half_close().await;
            }
            let answers = client.responses().await;
            let statuses: Vec<u16> = answers.iter().map(|it| it.status.as_u16()).collect();
            // A close with a megabyte unread is a reset, and may overtake the answer.
            let overtaken = statuses.is_empty() && request.len() > 65_536;
            let only: &[u16] = if *expected == 0 { &[] } else { &[*expected] };
            assert!(overtaken || statuses == only, "{name}: {answers:?} is not {expected}");
            for answer in answers.iter().filter(|it| it.status != 201) {
                let shown = format!("{:?} {:?}", answer.headers, answer.body);
                assert!(!shown.contains(USER), "{name} shows the user: {shown}");
                // The HTTP library refuses what is no request, without a body.
                assert!(answer.body.is_empty() || !answer.problem(*expected).is_empty(), "{name}");
            }
        }
        let sold = cases.iter().filter(|(_, _, status)| *status == 201).count();
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], sold);
        let logs = stop(server);
        for part in ["WARN", "ERROR", USER] {
            assert!(!logs.contains(part), "{part}: {logs}");
        }
    }
    for key in redis.run::<Vec<Vec<u8>>>(&["KEYS", "*"]).await {
        let shown = key.escape_ascii().to_string();
        if let Some(record) = shown.strip_prefix("seckill:{iphone}:") {
            assert!(["stock", "buyers", "orders"].contains(&record), "{shown}");
        } else if !["seckill:policies:configured", "seckill:mark"].contains(&&*shown) {
            let is_log = shown.ends_with("}:user:60s") || shown.ends_with("}:ip:60s");
            assert!(shown.starts_with("seckill:{=") && is_log, "{shown}");
            assert!((1..=61).contains(&ttl(&redis, &key).await), "{shown}");
        }
    }
}

#[tokio::test]
async fn every_request_is_handled() {
    hold(&[], &cases()).await;
}

#[tokio::test]
async fn every_query_is_handled() {
    let long = "%4C".repeat(128);
    let query = |name, query: &str, status| request(name, &format!("{ORDER}?{query}"), "", status);
    let cases = [
        query("no value", "&&=&user=&", 401),
        query("twice in disguise", "user=Lysistrata&us%65r=Lysistrata", 400),
        query("no UTF-8", "user=Lysistrata%C0%80", 400),
        query("NUL", "user=%00", 201),
        query("a command of Redis", "user=%0D%0AINFO+Lysistrata", 201),
        query("the name of another's log", "user=Lampito%7D%3Auser", 201),
        query("half a code", "user=Lysistrata%2", 201),
        query("128 bytes encoded", &format!("user={long}"), 201),
        query("129 bytes encoded", &format!("user={long}x"), 400),
    ];
    hold(&["--user-from", "query:user"], &cases).await;
}

#[tokio::test]
async fn every_cookie_is_handled() {
    let many = "a=b; ".repeat(5_000);
    let cases = [
        order("other names", "cookie: xsid=@; SID=@; sidx=@", 401),
        order("twice", "cookie: sid=@; sid=@", 400),
        order("in quotes", "cookie: sid=\"@\"", 201),
        order("an encoded NUL", "cookie: sid=@%00", 201),
        order("after many", &format!("cookie: {many}sid=@"), 201),
    ];
    hold(&["--user-from", "cookie:sid"], &cases).await;
}
