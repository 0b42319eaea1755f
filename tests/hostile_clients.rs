//! The seckill server and clients that are slow, leave early, or never listen.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::time::Duration;

use test_support::Redis;
use test_support::raw_client::RawClient;
use test_support::server_process::Server;

/// Longer than any answer may take, and far less than all stalled clients together are waited for.
const HANG: Duration = Duration::from_secs(30);

/// An order of a user, over a connection that is closed after it.
fn order(user: &str) -> Vec<u8> {
    let line = "POST /seckill/iphone/orders HTTP/1.1";
    format!("{line}\r\nhost: x\r\nx-user-id: {user}\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Asks over a connection of its own: one that was used before may be hung up on at any time.
async fn sold(server: &Server) -> u64 {
    let mut client = RawClient::connect(server).await;
    client.write(b"GET /seckill/iphone HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    client.answers().await[0].json()["sold"].as_u64().unwrap()
}

/// Asks the server to stop, and checks that it does so without having to cut anybody off.
fn stops_gracefully(server: Server) {
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success(), "{logs}");
    for part in ["panicked", "cut off", "ERROR"] {
        assert!(!logs.contains(part), "{part}: {logs}");
    }
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
async fn clients_that_stall_hold_nobody_up_and_are_hung_up_on() {
    let server = Server::start("seckill", &["--idle-timeout", "4s"]);
    let stalled = stalled(&server).await;
    for user in ["alice", "bob"] {
        let answer = tokio::time::timeout(HANG, server.order("iphone", user)).await;
        assert_eq!(answer.expect("served beside those that stall").status, 201);
    }
    for mut client in stalled {
        assert!(client.answers().await.is_empty(), "half a request has no answer");
    }
    assert_eq!(sold(&server).await, 2);
    stops_gracefully(server);
}

#[tokio::test]
async fn clients_that_stall_do_not_hold_up_a_stop() {
    let server = Server::start("seckill", &["--idle-timeout", "4s"]);
    let _stalled = stalled(&server).await;
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    stops_gracefully(server);
}

#[tokio::test]
async fn clients_that_have_closed_their_side_are_answered_if_the_request_was_whole() {
    let server = Server::start("seckill", &[]);
    let request = order("brief");
    for length in 0..=request.len() {
        let mut client = RawClient::connect(&server).await;
        client.write(&request[..length]).await;
        client.half_close().await;
        let answers = client.answers().await;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
        let expected: &[u16] = if length == request.len() { &[201] } else { &[] };
        assert_eq!(statuses, expected, "{length} bytes of {}", request.len());
    }
    assert_eq!(sold(&server).await, 1);
    stops_gracefully(server);
}

#[tokio::test]
async fn an_order_is_answered_although_its_client_closed_while_redis_was_slow() {
    let redis = Redis::start().await;
    let server = Server::start("seckill", &["--redis", &redis.url(), "--response-timeout", "10s"]);
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let mut client = RawClient::connect(&server).await;
    client.write(&order("alice")).await;
    client.half_close().await;
    while !redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    let answers = client.answers().await;
    assert_eq!(answers.len(), 1, "who has an order knows of it");
    stops_gracefully(server);
}

#[tokio::test]
async fn clients_that_break_off_leave_a_server_that_works() {
    let redis = Redis::start().await;
    for flags in [vec![], vec!["--redis".to_owned(), redis.url()]] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start("seckill", &flags);
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
    let mut connection = redis.connection().await;
    for key in redis.run::<Vec<String>>(&["KEYS", "seckill:{=*"]).await {
        let ttl: i64 = redis::cmd("TTL").arg(&key).query_async(&mut connection).await.unwrap();
        assert!((1..=61).contains(&ttl), "a window with a TTL of {ttl}");
    }
}

#[tokio::test]
async fn a_thousand_requests_in_one_breath_are_each_answered_and_counted() {
    let server = Server::start("seckill", &[]);
    let last = order("hasty");
    let request = String::from_utf8(last.clone()).unwrap().replace("connection: close\r\n", "");
    let mut client = RawClient::connect(&server).await;
    client.write(&[request.repeat(999).as_bytes(), &last].concat()).await;
    let answers = client.answers().await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!(statuses[..5], [201, 409, 409, 409, 409]);
    assert_eq!(statuses[5..], [429; 995]);
    assert_eq!(sold(&server).await, 1);
    stops_gracefully(server);
}

#[tokio::test]
async fn a_client_that_never_reads_holds_up_nobody_but_itself() {
    let server = Server::start("seckill", &[]);
    let request = String::from_utf8(order("deaf")).unwrap().replace("connection: close\r\n", "");
    let mut deaf = RawClient::connect(&server).await;
    // The server stops reading when its answers no longer go out.
    deaf.write_until_full(request.repeat(1000).as_bytes()).await;
    assert_eq!(server.order("iphone", "alice").await.status, 201);

    // Whether its answers are cut off or were all written is a matter of chance.
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success(), "{logs}");
}

#[tokio::test]
async fn an_order_that_does_not_end_is_cut_off_when_the_server_has_to_stop() {
    let redis = Redis::start().await;
    let server = Server::start("seckill", &["--redis", &redis.url(), "--response-timeout", "10m"]);
    redis.run::<()>(&["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let mut client = RawClient::connect(&server).await;
    client.write(&order("alice")).await;
    while !redis.run::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.signal("TERM");
    let (status, logs, _) = server.stopped();
    assert!(status.success() && logs.contains("cut off"), "{logs}");
}
