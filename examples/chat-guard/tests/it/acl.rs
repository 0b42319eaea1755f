//! The Redis user of SECURITY.md has the rights for all that the chat does.

use test_support::Redis;
use test_support::acl::{May, make_user, nothing_was_refused};

use crate::{ROOM, admin_request, mute, say, start, stop};

#[tokio::test]
async fn the_listed_rights_are_enough() {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::RunThePrograms).await;
    let server = start(&["--redis", &url, "--prefix", "limiter", "--response-timeout", "10s"]);
    for _ in 0..5 {
        say(&server, ROOM, "mallory", "cheap gold for all of you").await;
    }
    for number in 0..12 {
        let text = format!("{number} {}", "hello".repeat(number));
        say(&server, &format!("/private/peer-{number}"), "trudy", &text).await;
    }
    assert!(mute(&server, "mallory").await.is_some() && mute(&server, "trudy").await.is_some());
    let put = admin_request(&server, "PUT", "bob");
    assert_eq!(server.send_body(put, r#"{"for": "1h"}"#).await.status, 200);
    let list = server.admin_request("GET", "/admin/mutes");
    let list = list.header("authorization", format!("Bearer {}", crate::TOKEN));
    assert_eq!(server.send(list).await.status, 200);
    assert_eq!(server.send(admin_request(&server, "DELETE", "bob")).await.status, 204);
    nothing_was_refused(&redis).await;
    let logs = stop(server);
    assert!(!logs.contains("NOPERM"), "{logs}");
}
