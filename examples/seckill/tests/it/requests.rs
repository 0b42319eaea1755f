//! Requests that no honest client sends. Each has its answer, sells nothing that it should not, and
//! leaves nothing in Redis but a log that expires.

use http::HeaderValue;
use test_support::Redis;

use crate::{alone, on_redis, ttl};

/// Part of each user id. No error and no log may show it.
const USER: &str = "Lysistrata";
const ORDER: &str = "POST /seckill/iphone/orders";

#[tokio::test]
async fn every_request_is_handled() {
    let (nil, long) = ("00000000-0000-0000-0000-000000000000", USER.repeat(13));
    let by = |user: &[u8], status| (ORDER.to_owned(), user.to_owned(), status);
    let mut cases = vec![
        by(b"", 401),
        by(b"Lysistrata\xc0\xaf", 400),
        by("Lysistrata\u{fffd}".as_bytes(), 400),
        by(b"sha256:Lysistrata", 400),
        by(b"Lysi\tstrata", 400),
        // No URL of the operator has them.
        by(b"..", 400),
        by(b".", 400),
        by(&long.as_bytes()[..129], 400),
        by(&long.as_bytes()[..128], 201),
        by("Lysistrata-Λυσιστράτη-利西翠姐-🕊".as_bytes(), 201),
        by(b"Lampito}:user:60s", 201),
        by(b"Lysistrata; FLUSHALL *1 $8 $(id) `id` ../../ %s%n", 201),
        (format!("GET /orders/iphone.{nil}"), Vec::new(), 401),
        // In place of the header a query may name the user, and only then.
        (format!("{ORDER}?user="), Vec::new(), 401),
        (format!("{ORDER}?user=Lysistrata&us%65r=Lysistrata"), Vec::new(), 400),
        (format!("{ORDER}?user=%0D%0AINFO+Lysistrata"), Vec::new(), 400),
        (format!("{ORDER}?user=Lampito"), b"Myrrhine".to_vec(), 201),
        (format!("{ORDER}?user=Myrrhine"), Vec::new(), 409),
    ];
    for order in [&format!("iphone.{nil}"), "*", "%ff", "a%2Fb"] {
        cases.push((format!("GET /orders/{order}"), USER.into(), 404));
    }
    for sku in ["android", "iphone%00", "%7Biphone%7D", "=Lampito", "%ff", "a/b"] {
        let user = format!("{USER}-{}", cases.len());
        cases.push((format!("POST /seckill/{sku}/orders"), user.into(), 404));
    }
    let redis = Redis::start().await;
    let flags = ["--ip-quota", "1000/60s", "--stock", "iphone=1000", "--user-query", "user"];
    for server in [alone(&flags), on_redis(&redis, &flags)] {
        for (line, user, expected) in &cases {
            let (method, path) = line.split_once(' ').unwrap();
            let user = HeaderValue::from_bytes(user).unwrap();
            // The limit by address believes the peer's, and no header.
            let request = server.request(method, path).header("x-forwarded-for", "6.6.6.6");
            let request = if user.is_empty() { request } else { request.header("x-user-id", user) };
            let answer = server.send(request).await;
            assert_eq!(answer.status, *expected, "{line}: {answer:?}");
            if method == "GET" {
                // A cache in front would answer other users with it.
                assert_eq!(answer.header("cache-control"), Some("no-store"), "{line}");
            }
            if answer.status != 201 {
                answer.problem(*expected);
                let shown = format!("{:?} {:?}", answer.headers, answer.body);
                assert!(!shown.contains(USER), "{line} shows the user: {shown}");
            }
        }
        let both = server.request("POST", "/seckill/iphone/orders?user=Lampito");
        let both = both.header("x-user-id", "Myrrhine").header("x-user-id", "Kalonike");
        server.send(both).await.problem(400);
        let logs = server.stop();
        assert!(!logs.contains("ERROR") && !logs.contains(USER), "{logs}");
    }
    let sold = cases.iter().filter(|(.., status)| *status == 201).count();
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
