//! The Redis user of SECURITY.md has the rights for all that the server does.

use test_support::acl::{May, make_user, nothing_was_refused};
use test_support::policy_file::PolicyFile;
use test_support::{Redis, eventually};

use crate::{TOKEN, admin_request, alone, stop};

#[tokio::test]
async fn the_listed_rights_are_enough() {
    let redis = Redis::start().await;
    let url = make_user(&redis, May::RunThePrograms).await;
    let file = PolicyFile::new(
        "policies.toml",
        "[policies]\nip = '999/60s'\n[policies.user]\nquotas = '3/60s'\npenalty = '1/1h:1h'\n",
    );
    let common = ["--redis", &url, "--prefix", "limiter"];
    let admin = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let sale = ["--stock", "iphone=2", "--opens-in", "1ms", "--response-timeout", "10s"];
    let server = alone(&[&common[..], &admin, &sale, &file.flags()].concat());
    let is_sold = async |user: &str| server.order("iphone", user).await.status == 201;
    eventually("the sale opens", async || is_sold("alice").await).await;
    let order = server.order("iphone", "alice").await.json()["order_id"].clone();
    let order = server.request("GET", &format!("/orders/{}", order.as_str().unwrap()));
    assert_eq!(server.send(order.header("x-user-id", "alice")).await.status, 200);
    assert!(is_sold("bob").await);
    for number in 0..20 {
        // The buyers of what is sold out are read.
        server.order("iphone", &format!("late-{number}")).await.problem(410);
    }
    assert_eq!(server.get("/seckill/iphone").await.json()["sold"], 2);
    for _ in 0..4 {
        server.order("no-such", "mallory").await;
    }
    server.order("no-such", "mallory").await.problem(403);

    let body = r#"{"for": "2h", "reason": "a script"}"#;
    let ban = server.send_body(admin_request(&server, "PUT", "/admin/bans/mallory"), body).await;
    assert_eq!(ban.status, 200);
    for path in ["/admin/bans", "/admin/bans/mallory", "/admin/explain/alice", "/admin/policies"] {
        assert_eq!(server.send(admin_request(&server, "GET", path)).await.status, 200, "{path}");
    }
    let lifted = server.send(admin_request(&server, "DELETE", "/admin/bans/mallory")).await;
    assert_eq!(lifted.status, 204);
    let change = admin_request(&server, "PUT", "/admin/policies/user");
    assert_eq!(server.send_body(change, r#"{"quotas": "9/60s"}"#).await.status, 200);

    // With replicas, of which there are none.
    let waiting =
        alone(&[&common[..], &["--min-replicas", "1", "--response-timeout", "1s"]].concat());
    assert_eq!(waiting.order("iphone", "bob").await.problem(503), "/problems/not-replicated");
    nothing_was_refused(&redis).await;
    for server in [server, waiting] {
        let logs = stop(server);
        assert!(!logs.contains("NOPERM"), "{logs}");
    }
}
