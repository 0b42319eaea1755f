//! The seckill server against requests that nobody honest sends. Each has its answer, none of them
//! sells what it should not or leaves more in Redis than a window that runs out, and no user is
//! named where they should not be.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "support/hostile_requests.rs"]
mod hostile_requests;

use hostile_requests::{
    Case, Expected, SOLD, USER, cookies, messages, queries, skus_and_orders, user_ids,
};
use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::{Answer, Server};

fn check(case: &Case, answer: Option<Answer>) {
    let name = &case.name;
    let Some(answer) = answer else {
        // What closes with a megabyte unread is a reset, and may overtake the answer.
        let overtaken =
            matches!(case.expected, Expected::Refused(_)) && case.request.len() > 65_536;
        assert!(overtaken || matches!(case.expected, Expected::Closed), "{name}: no answer");
        return;
    };
    match case.expected {
        Expected::Sold => assert_eq!(answer.status, 201, "{name}: {answer:?}"),
        Expected::Problem(status, kind) => {
            assert_eq!(answer.status, status, "{name}: {answer:?}");
            assert_eq!(answer.problem(status), kind, "{name}");
        }
        Expected::Refused(status) => {
            assert_eq!((answer.status.as_u16(), &answer.body[..]), (status, &b""[..]), "{name}");
            assert_eq!(answer.header("connection"), "close", "{name}");
        }
        Expected::Closed => panic!("{name}: {answer:?}"),
    }
    if answer.status != 201 {
        let shown = format!("{:?} {:?}", answer.headers, answer.body);
        assert!(!shown.contains(USER), "{name} shows the user: {shown}");
    }
}

/// Puts every case to a server, and then looks at what they have left behind.
async fn hold(ip_quota: &str, flags: &[&str], cases: &[Case]) {
    for redis in [None, Some(Redis::start().await)] {
        let url = redis.as_ref().map(Redis::url);
        let kept = url.iter().flat_map(|url| ["--redis", url]);
        let flags: Vec<&str> = flags.iter().copied().chain(kept).collect();
        let always = ["--stock", "iphone=1000", "--ip-quota", ip_quota];
        let server = Server::start("seckill", &[&always, &flags[..]].concat());
        for case in cases {
            let mut client = RawClient::connect(&server).await;
            client.write(&case.request).await;
            if matches!(case.expected, Expected::Closed | Expected::Refused(_)) {
                // Else the server would wait for more of it.
                client.half_close().await;
            }
            let mut answers = client.answers().await;
            assert!(answers.len() <= 1, "{}: {answers:?}", case.name);
            check(case, answers.pop());
        }
        let sold = cases.iter().filter(|case| matches!(case.expected, Expected::Sold)).count();
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], sold);
        if let Some(redis) = &redis {
            nothing_else_is_left(redis, cases).await;
        }
        server.signal("TERM");
        let (status, logs, _) = server.stopped();
        assert!(status.success(), "{logs}");
        for part in ["panicked", "WARN", "ERROR", USER] {
            assert!(!logs.contains(part), "{part}: {logs}");
        }
    }
}

async fn nothing_else_is_left(redis: &Redis, cases: &[Case]) {
    let mut expected: Vec<_> = cases.iter().flat_map(|case| case.windows.clone()).collect();
    let records = ["stock", "buyers", "orders"].map(|what| format!("seckill:{{iphone}}:{what}"));
    let mut keys: Vec<Vec<u8>> = redis.run(&["KEYS", "*"]).await;
    keys.retain(|key| !records.iter().any(|record| record.as_bytes() == key));
    for key in &keys {
        let ttl: i64 =
            redis::cmd("TTL").arg(key).query_async(&mut redis.connection().await).await.unwrap();
        assert!((1..=61).contains(&ttl), "{} has a TTL of {ttl}", key.escape_ascii());
    }
    expected.sort();
    expected.dedup();
    keys.sort();
    let shown = |keys: &[Vec<u8>]| -> Vec<String> {
        keys.iter().map(|key| key.escape_ascii().to_string()).collect()
    };
    assert_eq!(shown(&keys), shown(&expected));
}

#[tokio::test]
async fn every_user_id_has_its_answer() {
    hold("off", &[], &user_ids()).await;
}

#[tokio::test]
async fn every_sku_and_order_id_has_its_answer() {
    hold("off", &[], &skus_and_orders()).await;
}

#[tokio::test]
async fn every_message_has_its_answer() {
    let mut cases = messages();
    for case in &mut cases {
        if case.expected == SOLD {
            case.windows.push(b"seckill:{=127.0.0.1}:ip".to_vec());
        }
    }
    hold("1000/60s", &[], &cases).await;
}

#[tokio::test]
async fn every_query_has_its_answer() {
    hold("off", &["--user-from", "query:user"], &queries()).await;
}

#[tokio::test]
async fn every_cookie_has_its_answer() {
    hold("off", &["--user-from", "cookie:sid"], &cookies()).await;
}
