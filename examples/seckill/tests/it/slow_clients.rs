//! Clients that hold on to a connection: slow readers, unfinished bodies, and more than there may be.

use std::time::Duration;

use test_support::raw_client::RawClient;
use test_support::server_process::Server;
use tokio::time::timeout;

use crate::{TOKEN, alone, statuses, stop};

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
async fn connections_above_the_cap_wait_for_a_free_one() {
    let server = alone(&["--max-connections", "2"]);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = RawClient::connect(&server).await;
        client.write(b"GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n").await;
        client.has_answered().await;
        held.push(client);
    }
    let mut third = server.spawn(server.request("GET", "/healthz"));
    assert!(timeout(Duration::from_millis(300), &mut third).await.is_err(), "it is not accepted");
    held.pop();
    assert_eq!(third.await.unwrap().status, 200);
}

#[tokio::test]
async fn operators_have_connections_of_their_own() {
    let admin = ["--ban", "1/10m:1h", "--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let server = alone(&[&admin[..], &["--max-connections", "1"]].concat());
    let mut held = RawClient::connect(&server).await;
    held.write(b"GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n").await;
    held.has_answered().await;
    let bans = crate::admin_request(&server, "GET", "/admin/bans");
    assert_eq!(server.send(bans).await.status, 200);
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
