//! What reaches the logs, and how much of it.

use http::HeaderValue;
use test_support::server_process::Server;

use super::{CHAT, ROOM, admin_request, say, start_logging, stop};

/// A name with characters that end a line or that a terminal obeys, and its escaped form.
const FORGED: &str = "a\u{9b}2Jb\u{2028}c\u{202e}d";
const ESCAPED: &str = r"a\u{9b}2Jb\u{2028}c\u{202e}d";

#[tokio::test]
async fn logs_name_users_at_debug_only() {
    for (level, named) in [("info", false), ("debug", true)] {
        let server = start_logging(level, &[]);
        for _ in 0..3 {
            say(&server, ROOM, "Lysistrata", "cheap gold").await;
        }
        server.send(admin_request(&server, "DELETE", "Lysistrata")).await;
        let logs = stop(server);
        assert_eq!(logs.matches("INFO chat_guard::audit: audit: muted").count(), 1, "{logs}");
        assert!(logs.contains("a mute was lifted"), "{logs}");
        assert_eq!(logs.contains("Lysistrata"), named, "{level}: {logs}");
        assert!(!logs.contains("gold"), "{logs}");
    }
}

#[tokio::test]
async fn names_are_logged_in_escaped_form() {
    let server = Server::start_logging(CHAT, "debug", &[]);
    for _ in 0..3 {
        let name = HeaderValue::from_bytes(FORGED.as_bytes()).unwrap();
        let request = server.request("POST", ROOM).header("x-user-id", name);
        let answer = server.send_body(request, r#"{"text": "cheap gold"}"#).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    let logs = stop(server);
    assert!(logs.contains(ESCAPED), "{logs:?}");
    for it in ['\u{9b}', '\u{2028}', '\u{202e}'] {
        assert!(!logs.contains(it), "{it:?} in {logs:?}");
    }
    assert!(logs.contains(&format!("user=\"{ESCAPED}\"")), "not only by the writer: {logs}");
}
