//! One opening for all servers, on the clock of Redis.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_micros;
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::{on_redis, stop, ttl};

const HOUR: u64 = 3600;
const FREE: [&str; 4] = ["--quota", "9999/1s", "--ip-quota", "off"];

async fn is_open(server: &Server) -> bool {
    server.order("iphone", "alice").await.status != 403
}

#[tokio::test]
async fn opens_in_is_agreed_on_once() {
    let redis = Redis::start().await;
    let first = on_redis(&redis, &["--opens-in", "1h"]);
    let agreed: String = redis.run(&["GET", "seckill:opening"]).await;
    assert!((1..40 * 24 * HOUR as i64).contains(&ttl(&redis, b"seckill:opening").await));
    // A running server writes it again when it is lost.
    redis.run::<()>(&["DEL", "seckill:opening"]).await;
    let held = async || redis.run::<Option<String>>(&["GET", "seckill:opening"]).await;
    eventually("it is back", async || held().await.as_ref() == Some(&agreed)).await;
    let second = on_redis(&redis, &["--opens-in", "1ms"]);
    for server in [&first, &second] {
        let early = server.order("iphone", "alice").await;
        assert_eq!(early.problem(403), "/problems/sale-not-open");
        assert!((HOUR - 120..=HOUR).contains(&early.retry_after()), "{early:?}");
        let left = server.get("/seckill/iphone").await.json()["opens_in_ms"].as_u64().unwrap();
        assert!(((HOUR - 120) * 1000..=HOUR * 1000).contains(&left), "{left} ms");
    }
    assert!(stop(second).contains("different openings"));
    assert!(!stop(first).contains("different openings"));
}

#[tokio::test]
async fn no_order_is_taken_before_the_opening() {
    let redis = Redis::start().await;
    let time = async || {
        let (seconds, micros): (u64, u64) = redis.run(&["TIME"]).await;
        seconds * 1_000_000 + micros
    };
    let opening = time().await + 1_500_000;
    let date = format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(opening)).to_string();
    let flags = [&FREE[..], &["--opens-at", &date]].concat();
    for server in [on_redis(&redis, &flags), on_redis(&redis, &flags)] {
        eventually("it opens", async || is_open(&server).await).await;
        assert!(time().await >= opening, "early by {} us", opening - time().await);
    }
}

#[tokio::test]
async fn the_later_opening_holds_for_every_server() {
    let from_now = |seconds| {
        format_rfc3339_micros(SystemTime::now() + Duration::from_secs(seconds)).to_string()
    };
    let (near, far) = (from_now(1), from_now(HOUR));
    let date = ["--opens-at", &far];
    let others: [&[&str]; 3] = [&[], &["--opens-in", "1ms"], &["--opens-at", &near]];
    for other in others {
        for [first, second] in [[&date[..], other], [other, &date[..]]] {
            let redis = Redis::start().await;
            let servers =
                [first, second].map(|opening| on_redis(&redis, &[&FREE[..], opening].concat()));
            for server in &servers {
                let is_closed = async || !is_open(server).await;
                eventually(&format!("{first:?}, {second:?}: it is closed"), is_closed).await;
            }
            // Long after the earlier of the two.
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let mut logs = String::new();
            for server in servers {
                let early = server.order("iphone", "alice").await;
                assert_eq!(early.problem(403), "/problems/sale-not-open", "{first:?}, {second:?}");
                logs += &stop(server);
            }
            let is_said = logs.contains("different openings") || logs.contains("a later opening");
            assert!(is_said, "{logs}");
        }
    }
}
