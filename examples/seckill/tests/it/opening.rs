//! One opening for all servers, on the clock of Redis.

use std::time::Duration;

use humantime::format_rfc3339_micros;
use test_support::server_process::Server;
use test_support::{Redis, eventually};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{alone, on_redis, stop, ttl};

const HOUR: u64 = 3600;

/// Starts a relay to a Redis, for whose clients the clock of that Redis is an hour ahead. Returns its
/// URL.
async fn an_hour_ahead(redis: &Redis) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, url) = (redis.port(), format!("redis://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(relay(from_client, to_server, |_| {}));
            tokio::spawn(relay(from_server, to_client, add_an_hour));
        }
    });
    url
}

async fn relay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    change: impl Fn(&mut [u8]),
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        change(&mut buffer[..length]);
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}

/// Changes each integer that is a time in microseconds of this century.
fn add_an_hour(reply: &mut [u8]) {
    const START: &[u8] = b":1";
    for at in 0..reply.len().saturating_sub(18) {
        let is_time = reply[at..].starts_with(START) && reply[at + 17..].starts_with(b"\r\n");
        if let (true, Ok(Ok(time))) =
            (is_time, std::str::from_utf8(&reply[at + 1..at + 17]).map(str::parse::<u64>))
        {
            let later = (time + HOUR * 1_000_000).to_string();
            reply[at + 1..at + 17].copy_from_slice(later.as_bytes());
        }
    }
}

/// The date that is so far off.
fn from_now(time: Duration) -> String {
    format_rfc3339_micros(std::time::SystemTime::now() + time).to_string()
}

async fn is_open(server: &Server) -> bool {
    server.order("iphone", "alice").await.status != 403
}

// The relay has to work while the server starts.
#[tokio::test(flavor = "multi_thread")]
async fn opens_at_is_compared_with_redis() {
    let redis = Redis::start().await;
    let url = an_hour_ahead(&redis).await;
    let date = from_now(Duration::from_secs(HOUR / 2));
    let flags = ["--opens-at", &date, "--quota", "999/1s", "--response-timeout", "10s"];
    let ahead = alone(&[&flags[..], &["--redis", &url]].concat());
    assert!(is_open(&ahead).await, "by the clock of Redis it is half an hour past the opening");
    let on_time = alone(&[&flags[..], &["--redis", &redis.url()]].concat());
    let early = on_time.order("iphone", "bob").await;
    assert_eq!(early.problem(403), "/problems/sale-not-open");
    assert!((HOUR / 3..=HOUR / 2).contains(&early.retry_after()), "{early:?}");
}

#[tokio::test]
async fn opens_in_is_agreed_on_once() {
    let redis = Redis::start().await;
    let first = on_redis(&redis, &["--opens-in", "1h"]);
    let second = on_redis(&redis, &["--opens-in", "1ms"]);
    for server in [&first, &second] {
        let early = server.order("iphone", "alice").await;
        assert_eq!(early.problem(403), "/problems/sale-not-open");
        assert!((HOUR - 120..=HOUR).contains(&early.retry_after()), "{early:?}");
        let left = server.get("/seckill/iphone").await.json()["opens_in_ms"].as_u64().unwrap();
        assert!(((HOUR - 120) * 1000..=HOUR * 1000).contains(&left), "{left} ms");
    }
    assert!((1..40 * 24 * HOUR as i64).contains(&ttl(&redis, b"seckill:opening").await));
    assert!(stop(second).contains("different openings"));
    assert!(!stop(first).contains("different openings"));
}

#[tokio::test]
async fn a_restart_does_not_move_the_opening() {
    let redis = Redis::start().await;
    let quota = ["--quota", "9999/1s", "--ip-quota", "off"];
    let first = on_redis(&redis, &[&quota[..], &["--opens-in", "1s"]].concat());
    eventually("it opens", async || is_open(&first).await).await;
    stop(first);
    let again = on_redis(&redis, &[&quota[..], &["--opens-in", "1h"]].concat());
    assert!(is_open(&again).await, "the sale was open before the restart");
}

#[tokio::test]
async fn a_lost_opening_is_written_again() {
    let redis = Redis::start().await;
    let first = on_redis(&redis, &["--opens-in", "1h"]);
    let agreed: String = redis.run(&["GET", "seckill:opening"]).await;
    redis.run::<()>(&["DEL", "seckill:opening"]).await;
    let is_back = async || redis.run::<Option<String>>(&["GET", "seckill:opening"]).await.is_some();
    eventually("the running server writes it", is_back).await;
    assert_eq!(redis.run::<String>(&["GET", "seckill:opening"]).await, agreed);
    let second = on_redis(&redis, &["--opens-in", "1ms"]);
    for server in [first, second] {
        server.order("iphone", "alice").await.problem(403);
    }
}

#[tokio::test]
async fn no_order_is_taken_before_the_opening() {
    let redis = Redis::start().await;
    let time = async || {
        let (seconds, micros): (u64, u64) = redis.run(&["TIME"]).await;
        seconds * 1_000_000 + micros
    };
    let opening = time().await + 1_500_000;
    let date = std::time::UNIX_EPOCH + Duration::from_micros(opening);
    let date = format_rfc3339_micros(date).to_string();
    let flags = ["--quota", "9999/1s", "--ip-quota", "off", "--opens-at", &date];
    for server in [on_redis(&redis, &flags), on_redis(&redis, &flags)] {
        eventually("it opens", async || is_open(&server).await).await;
        assert!(time().await >= opening, "early by {} us", opening - time().await);
    }
}

#[tokio::test]
async fn the_later_opening_holds_for_every_server() {
    let (near, far) = (from_now(Duration::from_secs(1)), from_now(Duration::from_secs(HOUR)));
    let date = ["--opens-at", &far];
    let others: [&[&str]; 3] = [&[], &["--opens-in", "1ms"], &["--opens-at", &near]];
    for other in others {
        for [first, second] in [[&date[..], other], [other, &date[..]]] {
            let redis = Redis::start().await;
            let flags = ["--quota", "9999/1s", "--ip-quota", "off"];
            let servers =
                [first, second].map(|opening| on_redis(&redis, &[&flags[..], opening].concat()));
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
                assert!((HOUR - 300..=HOUR).contains(&early.retry_after()), "{early:?}");
                logs += &stop(server);
            }
            assert!(
                logs.contains("different openings") || logs.contains("a later opening"),
                "{logs}"
            );
        }
    }
}

#[tokio::test]
async fn an_order_does_not_ask_redis_the_time() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &["--opens-in", "1h", "--ip-quota", "off", "--quota", "1/60s"]);
    server.order("iphone", "alice").await.problem(403);
    // A full quota is denied from memory, so all that is left are the reads of the time.
    let (before, begun) = (redis.call_count("evalsha").await, std::time::Instant::now());
    for _ in 0..200 {
        server.order("iphone", "alice").await.problem(429);
    }
    let calls = redis.call_count("evalsha").await - before;
    assert!(calls <= 5 * begun.elapsed().as_secs() + 8, "{calls} in {:?}", begun.elapsed());
}
