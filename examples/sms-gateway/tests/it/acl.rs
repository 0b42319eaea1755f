//! The Redis user of SECURITY.md has the rights for all that the gateway does.

use test_support::Redis;
use test_support::acl::{May, make_user, nothing_was_refused};

use crate::{ALICE, BOB, operator, put, shown, sms, start, stop};

#[tokio::test]
async fn the_listed_rights_are_enough() {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::RunThePrograms).await;
    let server = start(&["--redis", &url, "--prefix", "limiter", "--receiver-limit", "1/60s"]);
    assert_eq!(sms(&server, "bank", ALICE).await.status, 202);
    sms(&server, "bank", ALICE).await.problem(429);
    // What fails downstream is given back.
    put(&server, "/downstream", r#"{"latency": "1ms", "errors": "100%"}"#).await;
    assert!(sms(&server, "bank", BOB).await.status.is_server_error());
    for (path, body) in [("/policies/receiver", "5/60s"), ("/institutions/post", "")] {
        let changed = put(&server, path, body).await;
        assert!(changed.status.is_success(), "{changed:?}");
    }
    server.send(operator(&server, "DELETE", "/institutions/post")).await;
    for path in ["/policies", "/refusals", "/downstream"] {
        shown(&server, path).await;
    }
    nothing_was_refused(&redis).await;
    let logs = stop(server);
    assert!(!logs.contains("NOPERM"), "{logs}");
}
