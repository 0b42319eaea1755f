//! How much a client can make the chat send and keep.

use std::time::Duration;

use test_support::raw_client::RawClient;
use tokio::time::timeout;

use super::{ROOM, say, seen, start};

/// A text with the longest JSON that a body takes: six bytes for each character.
fn longest() -> String {
    "\u{1}".repeat(10_000)
}

#[tokio::test]
async fn history_is_the_newest_100_within_256_kb() {
    let server = start(&[]);
    for number in 0..120 {
        say(&server, ROOM, &format!("user-{number}"), "short").await;
    }
    let posts = seen(&server, ROOM, "carol").await;
    assert_eq!((posts.len(), posts[0].as_str()), (100, "user-20: short"));
    for number in 0..20 {
        say(&server, ROOM, &format!("long-{number}"), &longest()).await;
    }
    let answer = server.send(server.request("GET", ROOM).header("x-user-id", "carol")).await;
    assert!((180_000..=256_000).contains(&answer.body.len()), "{} bytes", answer.body.len());
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("content-length"), answer.body.len().to_string());
    let posts = answer.json();
    assert_eq!(posts.as_array().unwrap().last().unwrap()["from"], "long-19");
}

#[tokio::test]
async fn slow_readers_share_the_messages() {
    let server = start(&["--io-timeout", "30s"]);
    for number in 0..20 {
        say(&server, ROOM, &format!("user-{number}"), &longest()).await;
    }
    let mut readers = Vec::new();
    let memory = server.resident_kb();
    for _ in 0..100 {
        let mut reader = RawClient::connect(&server).await;
        // Several requests, so that what is not read fills the buffers of the system.
        let request = format!("GET {ROOM} HTTP/1.1\r\nhost: chat\r\nx-user-id: carol\r\n\r\n");
        reader.write(request.repeat(30).as_bytes()).await;
        reader.has_answered().await;
        readers.push(reader);
    }
    // Each would hold 256 kB, twice with a copy for the connection.
    let grown = server.resident_kb().saturating_sub(memory);
    assert!(grown < 100 * 128, "{grown} kB for 100 readers");
    say(&server, ROOM, "alice", "still here").await;
}

#[tokio::test]
async fn unfinished_message_is_given_up() {
    let server = start(&["--io-timeout", "300ms"]);
    let mut client = RawClient::connect(&server).await;
    let head = format!("POST {ROOM} HTTP/1.1\r\nhost: chat\r\nx-user-id: mallory");
    client.write(format!("{head}\r\ncontent-length: 40\r\n\r\n{{\"text\"").as_bytes()).await;
    let answers = timeout(Duration::from_secs(20), client.responses()).await;
    answers.expect("it does not wait for the rest")[0].problem(408);
}
