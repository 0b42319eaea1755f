//! The settings of the rules.

use super::{ROOM, mute, on_both, say, seen};

#[tokio::test]
async fn exempt_users_are_not_muted() {
    on_both(&["--exempt", "support", "--exempt", "帮助"], async |server| {
        for customer in 0..10 {
            for user in ["support", "mallory"] {
                say(server, &format!("/private/{customer}"), user, "how can I help you?").await;
            }
        }
        assert_eq!(mute(server, "support").await, None);
        assert_eq!(seen(server, "/private/9", "9").await, ["support: how can I help you?"]);
        assert!(mute(server, "mallory").await.is_some());
    })
    .await;
}

#[tokio::test]
async fn short_messages_are_not_compared() {
    let rule = ["--rule", "similar 3/1m 90% mute 1h", "--rule", "similar 3/1m 90% min 10 mute 2h"];
    on_both(&[&rule[..], &["--min-length", "4"]].concat(), async |server| {
        for _ in 0..5 {
            say(server, ROOM, "alice", "ok!").await;
            say(server, ROOM, "bob", "buy gold").await;
            say(server, ROOM, "mallory", "buy gold now!").await;
        }
        assert_eq!(mute(server, "alice").await, None);
        assert_eq!(mute(server, "bob").await.unwrap()["rule"], "similar 3/60s 90% min 4 mute 1h");
        let rule = &mute(server, "mallory").await.unwrap()["rule"];
        assert_eq!(rule, "similar 3/60s 90% min 10 mute 2h");
    })
    .await;
}

#[tokio::test]
async fn the_first_mute_is_short() {
    on_both(&["--first-mutes", "10m,1h"], async |server| {
        for _ in 0..3 {
            say(server, ROOM, "mallory", "cheap gold").await;
        }
        let muted = mute(server, "mallory").await.unwrap();
        assert_eq!(muted["rule"], "similar 3/60s 90% mute 6h");
        let left = muted["remaining_seconds"].as_u64().unwrap();
        assert!((540..=600).contains(&left), "{muted}");
    })
    .await;
}

#[tokio::test]
async fn numbers_are_not_alike_but_disguises_are() {
    on_both(&[], async |server| {
        for number in ["10", "100", "1000", "10000", "100000"] {
            say(server, ROOM, "alice", number).await;
        }
        assert_eq!(mute(server, "alice").await, None);
        for text in ["cheap gold", "\u{441}he\u{430}\u{440} g\u{43e}ld", "c\u{301}heap go\u{336}ld"]
        {
            say(server, ROOM, "mallory", text).await;
        }
        assert!(mute(server, "mallory").await.is_some());
    })
    .await;
}
