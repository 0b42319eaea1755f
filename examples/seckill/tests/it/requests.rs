//! Requests that no honest client sends. Each has its answer, sells nothing that it should not, and
//! leaves nothing in Redis but a log that expires.

use test_support::Redis;

use crate::raw_client::RawClient;
use crate::{TOKEN, alone, on_redis, stop, ttl};

/// Part of each user id. No error and no log may show it.
const USER: &str = "Lysistrata";
const ORDER: &str = "POST /seckill/iphone/orders";

/// A request, and the status of its answer: 0 if the server closes without one.
type Case = (Vec<u8>, u16);

/// A request with these header lines.
fn request(line: &str, headers: impl AsRef<[u8]>, status: u16) -> Case {
    let start = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    ([start.as_bytes(), headers.as_ref(), b"\r\n"].concat(), status)
}

/// An order of the user that this header value names.
fn by(user: impl AsRef<[u8]>, status: u16) -> Case {
    request(ORDER, [b"x-user-id: ", user.as_ref(), b"\r\n"].concat(), status)
}

/// Puts every case to a server, and then looks at what they have left behind.
async fn hold(flags: &[&str], cases: &[Case]) {
    let redis = Redis::start().await;
    let flags =
        [flags, &["--ip-quota", "1000/60s", "--stock", "iphone=1000", "--payment-token", TOKEN]]
            .concat();
    for server in [alone(&flags), on_redis(&redis, &flags)] {
        for (request, expected) in cases {
            let name = String::from_utf8_lossy(&request[..request.len().min(200)]);
            let mut client = RawClient::connect(&server).await;
            client.write(request).await;
            if !request.ends_with(b"\r\n\r\n") {
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
        let logs = stop(server);
        for part in ["WARN", "ERROR", USER] {
            assert!(!logs.contains(part), "{part}: {logs}");
        }
    }
    let sold = cases.iter().filter(|(_, status)| *status == 201).count();
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, sold);
    for key in redis.run::<Vec<Vec<u8>>>(&["KEYS", "*"]).await {
        let shown = key.escape_ascii().to_string();
        if let Some(record) = shown.strip_prefix("seckill:{iphone}:") {
            assert!(["stock", "buyers", "orders", "draw", "unpaid"].contains(&record), "{shown}");
        } else if shown != "seckill:mark" {
            let is_log = shown.ends_with("}:user:60s") || shown.ends_with("}:ip:60s");
            assert!(shown.starts_with("seckill:{=") && is_log, "{shown}");
            assert!((1..=61).contains(&ttl(&redis, &key).await), "{shown}");
        }
    }
}

#[tokio::test]
async fn every_request_is_handled() {
    let (nil, long) = ("00000000-0000-0000-0000-000000000000", USER.repeat(100_000));
    let one = format!("x-user-id: {USER}\r\n");
    let forged = format!("x-user-id: {USER}-2\r\nx-forwarded-for: 6.6.6.6\r\n");
    let endless = format!("x-user-id: {USER}-3\r\ncontent-length: 1000000000000\r\n");
    let mut cases = vec![
        request(ORDER, "", 401),
        by(" \t ", 401),
        request(ORDER, format!("{one}X-USER-ID: {USER}\r\n"), 400),
        by(b"Lysistrata\xc0\xaf", 400),
        by("Lysistrata\u{fffd}", 400),
        by("sha256:Lysistrata", 400),
        by(&long[..129], 400),
        by(&long[..128], 201),
        by(&long, 431),
        by("Lysistrata-Λυσιστράτη-利西翠姐-🕊", 201),
        by("Lampito}:user:60s", 201),
        by("Lysistrata; FLUSHALL *1 $8 $(id) `id` ../../ %s%n", 201),
        by("Lysi\0strata", 400),
        request(&format!("GET /seckill/{}", "x".repeat(70_000)), "", 431),
        request(&format!("GET /orders/iphone.{nil}"), "", 401),
        (b"POST /seckill/iphone/orders HTTP/1.1\r\nx-user".to_vec(), 0),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 400),
        request("BUY /seckill/iphone/orders", "", 405),
        request(ORDER, "a: b\r\n".repeat(101), 431),
        // The server does not read the body of an order, so it does not wait for one either.
        request(ORDER, endless, 201),
        // The limit by address believes the peer's, and no header.
        request(ORDER, forged, 201),
    ];
    for order in [&format!("iphone.{nil}"), "*", "%ff", "a%2Fb"] {
        cases.push(request(&format!("GET /orders/{order}"), &one, 404));
    }
    for sku in ["android", "iphone%00", "%7Biphone%7D", "=Lampito", "%ff", "a/b"] {
        let user = format!("x-user-id: {USER}-{}\r\n", cases.len());
        cases.push(request(&format!("POST /seckill/{sku}/orders"), user, 404));
    }
    hold(&[], &cases).await;
    let query = |query: &str, status| request(&format!("{ORDER}?{query}"), "", status);
    let twice = query("user=Lysistrata&us%65r=Lysistrata", 400);
    let cases = [
        query("user=", 401),
        twice,
        query("user=%0D%0AINFO+Lysistrata", 201),
        // The header comes first: a query can't take its place.
        request(&format!("{ORDER}?user=Lampito"), "x-user-id: Myrrhine\r\n", 201),
        request(&format!("{ORDER}?user=Myrrhine"), "", 409),
    ];
    hold(&["--user-query", "user"], &cases).await;
}
