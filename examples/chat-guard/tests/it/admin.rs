//! The admin listener, and the alerts for an operator.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;

use http::request::Builder;
use serde_json::{Value, json};
use test_support::Redis;
use test_support::server_process::Server;

use super::{CHAT, ROOM, TOKEN, admin_request, mute, on_both, say, seen, start};

#[tokio::test]
async fn mutes_are_for_operators_only() {
    let server = start(&[]);
    for _ in 0..3 {
        say(&server, ROOM, "mallory", "cheap gold").await;
    }
    for method in ["GET", "PUT", "DELETE"] {
        let path = "/admin/mutes/mallory";
        server.send(server.request(method, path)).await.problem(404);
        server.send(server.admin_request(method, path)).await.problem(401);
        let forwarded = admin_request(&server, method, "mallory").header("x-forwarded-for", "::1");
        server.send(forwarded).await.problem(403);
    }
    assert!(mute(&server, "mallory").await.is_some());
    let alone = Server::start(CHAT, &[]);
    alone.get("/admin/mutes/mallory").await.problem(404);
}

#[tokio::test]
async fn operator_mutes_and_lifts() {
    on_both(&["--exempt", "bob"], async |server| {
        let put = async |user: &str, body: &'static str| {
            server.send_body(admin_request(server, "PUT", user), body).await
        };
        for user in ["alice", "bob"] {
            let answer = put(user, r#"{"for": "1h"}"#).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["rule"], "manual mute 1h");
            say(server, ROOM, user, &format!("{user} says hello")).await;
        }
        assert!(seen(server, ROOM, "carol").await.is_empty());
        assert_eq!(mute(server, "alice").await.unwrap()["reason"], "a manual mute");
        let shorter = put("alice", r#"{"for": "1m"}"#).await.json();
        assert!(shorter["remaining_seconds"].as_u64().unwrap() > 3_000, "{shorter}");
        for user in ["alice", "bob"] {
            assert_eq!(server.send(admin_request(server, "DELETE", user)).await.status, 204);
            say(server, ROOM, user, &format!("{user} is back")).await;
        }
        assert_eq!(seen(server, ROOM, "carol").await.len(), 2);
        for body in ["", "{}", r#"{"for": 5}"#, r#"{"for": "1ms"}"#, r#"{"for": "2y"}"#] {
            let problem = put("alice", body).await.problem(400);
            assert_eq!(problem, "/problems/bad-mute", "{body}");
        }
        assert_eq!(mute(server, "alice").await, None);
    })
    .await;
}

#[tokio::test]
async fn operator_lists_the_mutes() {
    on_both(&["--rule", "events 2/1h mute 1h"], async |server| {
        let list = async |query: &str| server.send(list_request(server, query)).await;
        assert_eq!(list("").await.json(), json!({ "mutes": [] }));
        for user in 0..30 {
            for text in ["one", "two"] {
                say(server, ROOM, &format!("user {user}"), text).await;
            }
        }
        let (mut users, mut query) = (BTreeSet::new(), "?limit=7".to_owned());
        loop {
            let page = list(&query).await.json();
            for mute in page["mutes"].as_array().unwrap() {
                assert_eq!(mute["rule"], "events 2/1h mute 1h");
                users.insert(mute["user"].as_str().unwrap().to_owned());
            }
            let Some(next) = page["next"].as_str() else { break };
            query = format!("?limit=7&cursor={next}");
        }
        assert_eq!(users.len(), 30, "{users:?}");
        for query in ["?limit=0", "?limit=1001", "?cursor=x", "?user=a"] {
            assert_eq!(list(query).await.problem(400), "/problems/bad-page", "{query}");
        }
    })
    .await;
}

fn list_request(server: &Server, query: &str) -> Builder {
    let request = server.admin_request("GET", &format!("/admin/mutes{query}"));
    request.header("authorization", format!("Bearer {TOKEN}"))
}

#[tokio::test]
async fn known_mutes_hold_without_redis() {
    let redis = Redis::start().await;
    let server = start(&["--redis", &redis.url()]);
    for _ in 0..3 {
        say(&server, ROOM, "mallory", "cheap gold").await;
    }
    drop(redis);
    for _ in 0..4 {
        say(&server, ROOM, "mallory", "cheap gold").await;
        say(&server, ROOM, "bob", "hello").await;
    }
    assert_eq!(seen(&server, ROOM, "carol").await.len(), 2 + 4, "two of mallory, all of bob");
    assert!(mute(&server, "mallory").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn mutes_are_sent_to_the_webhook() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let server = start(&["--alert-webhook", &url]);
    for _ in 0..3 {
        say(&server, ROOM, "mal\"lory", "cheap gold").await;
    }
    let request = tokio::task::spawn_blocking(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let request = request.await.unwrap();
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let alert: Value = serde_json::from_str(body).unwrap();
    assert_eq!(alert["user"], "mal\"lory");
    assert_eq!(alert["rule"], "similar 3/60s 90% mute 6h");
    assert!(alert["text"].as_str().unwrap().starts_with(r#""mal\"lory" is muted"#), "{alert}");
}
