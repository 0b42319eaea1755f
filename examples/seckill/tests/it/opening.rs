//! One opening for all servers, on the clock of Redis.

use std::time::{SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_micros;

use crate::*;

async fn is_open(server: &Server) -> bool {
    server.order("iphone", "alice").await.status != 403
}

/// Returns how long a server says that it is still closed, in milliseconds.
async fn opens_in_ms(server: &Server) -> u64 {
    level(server).await["opens_in_ms"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn opens_in_is_added_once() {
    let redis = Redis::start().await;
    let first = on_redis(&redis, "--first-come --opens-in 1h");
    let opening: String = redis.run(&["GET", "seckill:opening"]).await;
    let ttl = redis.run::<i64>(&["TTL", "seckill:opening"]).await;
    assert_eq!(ttl, -1, "a restart after months moves nothing");
    // A server that is closed writes it again when it is lost.
    redis.command("DEL seckill:opening").await;
    let held = async || redis.run::<Option<String>>(&["GET", "seckill:opening"]).await;
    eventually("it is back", async || held().await.as_ref() == Some(&opening)).await;
    for server in [first, on_redis(&redis, "--opens-in 1ms"), on_redis(&redis, "")] {
        assert!(!is_open(&server).await);
        let left = opens_in_ms(&server).await;
        assert!(((HOUR - 120) * 1000..=HOUR * 1000).contains(&left), "{left} ms");
    }
}

#[tokio::test]
async fn early_orders_are_refused_and_count() {
    on_both("--first-come --opens-in 1h --quota 2/60s", async |server| {
        for _ in 0..2 {
            let early = server.order("iphone", "alice").await;
            assert_eq!(early.problem(403), "/problems/sale-not-open");
            assert!((HOUR - 120..=HOUR).contains(&early.retry_after().unwrap()), "{early:?}");
        }
        server.order("iphone", "alice").await.problem(429);
        assert_eq!(level(server).await["sold"], 0);
    })
    .await;
}

#[tokio::test]
async fn no_order_is_taken_before_the_opening() {
    let redis = Redis::start().await;
    let time = async || {
        let (seconds, micros): (u64, u64) = redis.run(&["TIME"]).await;
        seconds * 1_000_000 + micros
    };
    let opening = time().await + 1_500_000;
    let date = format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(opening));
    let flags = format!("{FREE} --first-come --opens-at {date}");
    for server in [on_redis(&redis, &flags), on_redis(&redis, &flags)] {
        eventually("it opens", async || is_open(&server).await).await;
        assert!(time().await >= opening, "early by {} us", opening - time().await);
    }
}

#[tokio::test]
async fn the_later_date_holds_for_servers_that_are_closed() {
    let redis = Redis::start().await;
    let servers = [1, 3, 1].map(|hours| {
        let date = SystemTime::now() + Duration::from_secs(hours * HOUR);
        on_redis(&redis, &format!("--opens-at {}", format_rfc3339_micros(date)))
    });
    for server in servers {
        let is_far = async || opens_in_ms(&server).await > 2 * HOUR * 1000;
        eventually("it opens with the last", is_far).await;
    }
}

/// Else who knows the secret of the draw could enter with a chosen name, and come before those in line.
#[tokio::test]
async fn a_sale_that_is_open_is_not_closed_again() {
    // As `date -u +%FT%T.%NZ` writes it. Redis keeps microseconds.
    let long_ago = "--opens-at 2020-01-01T00:00:00.123456789Z";
    for opened in ["--opens-in 0s", long_ago] {
        let redis = Redis::start().await;
        let server = on_redis(&redis, opened);
        let why = "in the key seckill:opening, and the sale is open\nhint: ";
        does_not_start(&redis, "--opens-at 2999-01-01T00:00:00Z", why);
        for server in [server, on_redis(&redis, "--opens-in 1h"), on_redis(&redis, long_ago)] {
            assert_eq!(opens_in_ms(&server).await, 0);
        }
    }
}

#[tokio::test]
async fn a_sale_does_not_open_while_redis_is_away() {
    let redis = Redis::start().await;
    let server = alone(&format!("{FREE} --first-come --redis {} --opens-in 2s", redis.url()));
    redis.signal("STOP");
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(server.order("iphone", "alice").await.problem(403), "/problems/sale-not-open");
    redis.signal("CONT");
    eventually("it opens", async || is_open(&server).await).await;
    assert!(server.stop().contains("the sale can't open"));
}

#[tokio::test]
async fn what_is_no_opening_prevents_the_start() {
    let redis = Redis::start().await;
    redis.command("SET seckill:opening noon").await;
    for opening in ["", "--opens-in 1h"] {
        does_not_start(&redis, opening, "seckill:opening holds no opening: delete it");
    }
    assert_eq!(redis.run::<String>(&["GET", "seckill:opening"]).await, "noon");
}
