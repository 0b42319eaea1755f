//! What the flash-sale server promises, as its clients and its operator see it.

mod bans;
mod clients;
mod fleet;
mod orders;
mod process;
mod requests;

use test_support::Redis;
use test_support::server_process::Server;

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");

/// The token of the admin listener.
const TOKEN: &str = "0123456789abcdef-the-token";

/// Starts a server that keeps everything itself.
fn alone(flags: &[&str]) -> Server {
    Server::start(SECKILL, flags)
}

/// Starts a server that waits for Redis as long as a busy machine may need.
fn on_redis(redis: &Redis, flags: &[&str]) -> Server {
    alone(&[flags, &["--redis", &redis.url(), "--response-timeout", "10s"]].concat())
}

/// Holds two servers to a promise: one that keeps everything itself and one that has a Redis.
async fn on_both(flags: &[&str], promise: impl AsyncFn(&Server)) {
    promise(&alone(flags)).await;
    promise(&on_redis(&Redis::start().await, flags)).await;
}

/// Returns the time to live of a key in seconds, or -1 if the key has none.
async fn ttl(redis: &Redis, key: &[u8]) -> i64 {
    redis::cmd("TTL").arg(key).query_async(&mut redis.connection().await).await.unwrap()
}

/// Asks a server to stop, and returns its logs.
fn stop(server: Server) -> String {
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success() && !logs.contains("panicked"), "{logs}");
    logs
}
