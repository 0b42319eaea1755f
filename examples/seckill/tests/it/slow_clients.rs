//! Clients that hold on to a connection: slow readers, unfinished bodies, and more than there may be.

use std::time::Duration;

use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::Server;
use tokio::time::timeout;

use crate::{TOKEN, alone, on_redis, one_is_blocked, statuses, stop};

const PIPELINE: &[u8] = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n";

/// Fills a connection with requests whose responses are never read.
async fn slow_reader(server: &Server) -> RawClient {
    let mut client = RawClient::connect(server).await;
    client.write_until_full(&PIPELINE.repeat(500)).await;
    client
}

#[tokio::test]
async fn client_that_does_not_read_is_closed() {
    let server = alone(&["--io-timeout", "3s"]);
    let client = slow_reader(&server).await;
    client.is_closed().await;
    // The timeout is for progress: a client that does read keeps its connection.
    let mut reader = RawClient::connect(&server).await;
    reader.write(&[&PIPELINE.repeat(500)[..], b"GET / HTTP/1.0\r\n\r\n"].concat()).await;
    assert_eq!(reader.responses().await.len(), 501);
}

#[tokio::test]
async fn full_server_serves_again_without_slow_readers() {
    let server = alone(&["--io-timeout", "3s", "--max-connections", "2"]);
    let held = tokio::join!(slow_reader(&server), slow_reader(&server));
    assert_eq!(server.get("/healthz").await.status, 200);
    drop(held);
    assert!(stop(server).contains("all connections are taken"), "it says why clients wait");
}

#[tokio::test]
async fn idle_connections_make_room() {
    let admin = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let server = alone(&[&admin[..], &["--max-connections", "8"]].concat());
    // Both listeners are full of clients that send nothing, or half a head.
    let mut held = Vec::new();
    for number in 0..100 {
        let url = if number < 20 { &server.url } else { server.admin_url.as_ref().unwrap() };
        let mut client = RawClient::connect_to(url).await;
        client.write(&b"GET /healthz HT"[..number % 15]).await;
        held.push(client);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    let bans = crate::admin_request(&server, "GET", "/admin/bans");
    assert_eq!(server.send(bans).await.status, 200);
}

#[tokio::test]
async fn connections_above_the_cap_wait_for_a_request() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &["--max-connections", "1"]);
    // A request that is under way keeps the only connection.
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let order = server.spawn(server.order_request("iphone", "alice"));
    one_is_blocked(&redis).await;
    let mut other = server.spawn(server.request("GET", "/healthz"));
    let waits = timeout(Duration::from_millis(300), &mut other).await;
    assert!(waits.is_err(), "it is not accepted");
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_eq!([order.await.unwrap().status, other.await.unwrap().status], [201, 200]);
}

#[tokio::test]
async fn unfinished_body_is_given_up() {
    let admin = ["--ban", "1/10m:1h", "--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let server = alone(&[&admin[..], &["--io-timeout", "300ms"]].concat());
    let mut client = RawClient::connect_to(server.admin_url.as_deref().unwrap()).await;
    let head =
        format!("PUT /admin/bans/a HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}");
    client.write(format!("{head}\r\ncontent-length: 40\r\n\r\n{{\"for\"").as_bytes()).await;
    let answers = client.responses().await;
    assert_eq!(answers.len(), 1);
    answers[0].problem(408);
}

#[tokio::test]
async fn refused_requests_are_one_line_a_second() {
    let server = alone(&["--ban", "1/10m:1h", "--admin", "127.0.0.1:0", "--admin-token", TOKEN]);
    for _ in 0..200 {
        server.send(server.admin_request("GET", "/admin/bans")).await.problem(401);
    }
    let lines = stop(server).lines().filter(|line| line.contains("audit: refused")).count();
    assert!((1..20).contains(&lines), "{lines} lines for 200 requests");
}

#[tokio::test]
async fn a_long_head_is_refused_and_not_kept() {
    let server = alone(&[]);
    let mut client = RawClient::connect(&server).await;
    let line = format!("x-filler: {}\r\n", "a".repeat(8000));
    client
        .write(format!("GET / HTTP/1.1\r\nhost: shop\r\n{}\r\n", line.repeat(12)).as_bytes())
        .await;
    assert_eq!(statuses(&mut client).await, [431]);
}
