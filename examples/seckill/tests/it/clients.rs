//! Clients that are slow, leave early, or never read.

use std::time::Duration;

use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::Server;

use crate::{alone, on_redis, one_is_blocked, statuses, stop, ttl};

/// Longer than any answer may take, and far less than all stalled clients together are waited for.
const HANG: Duration = Duration::from_secs(30);

/// An order of a user, over a connection that is closed after it.
fn order(user: &str) -> Vec<u8> {
    let line = "POST /seckill/iphone/orders HTTP/1.1";
    format!("{line}\r\nhost: x\r\nx-user-id: {user}\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Asks over a connection of its own: the server may close one that was used before.
async fn sold(server: &Server) -> u64 {
    let mut client = RawClient::connect(server).await;
    client.write(b"GET /seckill/iphone HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    client.responses().await[0].json()["sold"].as_u64().unwrap()
}

/// Asks the server to stop, and checks that it cuts no client off.
fn stops_gracefully(server: Server) {
    let logs = stop(server);
    assert!(!logs.contains("cut off") && !logs.contains("ERROR"), "{logs}");
}

/// Sends beginnings of an order, of every length but the whole, and then no more.
async fn stalled(server: &Server) -> Vec<RawClient> {
    let mut clients = Vec::new();
    let order = order("slow");
    for length in 0..order.len() {
        let mut client = RawClient::connect(server).await;
        client.write(&order[..length]).await;
        clients.push(client);
    }
    clients
}

#[tokio::test]
async fn stalled_clients_hold_no_other_up() {
    let server = alone(&["--idle-timeout", "4s"]);
    let stalled_clients = stalled(&server).await;
    for user in ["alice", "bob"] {
        let answer = tokio::time::timeout(HANG, server.order("iphone", user)).await;
        assert_eq!(answer.expect("served beside those that stall").status, 201);
    }
    for mut client in stalled_clients {
        assert!(client.responses().await.is_empty(), "half a request has no answer");
    }
    assert_eq!(sold(&server).await, 2);
    let _stalled_again = stalled(&server).await;
    stops_gracefully(server);
}

#[tokio::test]
async fn a_half_closed_client_is_answered() {
    let server = alone(&[]);
    let request = order("brief");
    for length in 0..=request.len() {
        let mut client = RawClient::connect(&server).await;
        client.write(&request[..length]).await;
        client.half_close().await;
        let expected: &[u16] = if length == request.len() { &[201] } else { &[] };
        assert_eq!(statuses(&mut client).await, expected, "{length} bytes of {}", request.len());
    }
    assert_eq!(sold(&server).await, 1);
    stops_gracefully(server);

    // Also when it has closed its side while Redis was slow.
    let redis = Redis::start().await;
    let server = on_redis(&redis, &[]);
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let mut client = RawClient::connect(&server).await;
    client.write(&request).await;
    client.half_close().await;
    one_is_blocked(&redis).await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_eq!(client.responses().await.len(), 1);
    stops_gracefully(server);
}

#[tokio::test]
async fn clients_that_break_off_do_no_harm() {
    let redis = Redis::start().await;
    for server in [alone(&[]), on_redis(&redis, &[])] {
        let request = order("rude");
        for length in 0..=request.len() {
            let mut client = RawClient::connect(&server).await;
            client.write(&request[..length]).await;
            client.reset();
        }
        assert_eq!(server.order("iphone", "alice").await.status, 201);
        // Of all those requests one was whole, and may have come through before the break.
        assert!((1..=2).contains(&sold(&server).await));
        stops_gracefully(server);
    }
    for key in redis.run::<Vec<String>>(&["KEYS", "seckill:{=*"]).await {
        assert!((1..=61).contains(&ttl(&redis, key.as_bytes()).await), "{key}");
    }
}

#[tokio::test]
async fn a_thousand_pipelined_orders_are_counted() {
    let server = alone(&[]);
    let last = order("hasty");
    let request = String::from_utf8(last.clone()).unwrap().replace("connection: close\r\n", "");
    let mut client = RawClient::connect(&server).await;
    client.write(&[request.repeat(999).as_bytes(), &last].concat()).await;
    let statuses = statuses(&mut client).await;
    assert_eq!(statuses[..5], [201, 409, 409, 409, 409]);
    assert_eq!(statuses[5..], [429; 995]);
    stops_gracefully(server);
}

#[tokio::test]
async fn client_that_never_reads_delays_no_other() {
    let server = alone(&[]);
    let request = String::from_utf8(order("deaf")).unwrap().replace("connection: close\r\n", "");
    let mut deaf = RawClient::connect(&server).await;
    // The server stops reading when its answers no longer go out.
    deaf.write_until_full(request.repeat(1000).as_bytes()).await;
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    stop(server);
}

#[tokio::test]
async fn an_endless_order_is_cut_off_at_a_stop() {
    let redis = Redis::start().await;
    let server = alone(&["--redis", &redis.url(), "--response-timeout", "10m"]);
    redis.run::<()>(&["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let mut client = RawClient::connect(&server).await;
    client.write(&order("alice")).await;
    one_is_blocked(&redis).await;
    assert!(stop(server).contains("cut off"));
}
