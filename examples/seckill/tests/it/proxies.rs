//! The limit by address, with and without a proxy in front of the server.

use test_support::server_process::{HttpResponse, Server, refuses, run};

use crate::{SECKILL, alone};

async fn order(server: &Server, user: &str, forwarded_for: &str) -> HttpResponse {
    let request = server.order_request("iphone", user).header("x-forwarded-for", forwarded_for);
    server.send(request).await
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client() {
    let flags = ["--trust-proxy", "192.0.2.0/24", "--trust-proxy", "127.0.0.1,::1"];
    let server = alone(&[&["--ip-quota", "1/60s"], &flags[..]].concat());
    assert_eq!(order(&server, "alice", "203.0.113.1").await.status, 201);
    let denied = order(&server, "bob", "203.0.113.1").await;
    assert!(denied.problem(429).ends_with("#quota-exceeded"));
    assert_eq!(denied.json()["violated-policies"][0], "ip");
    assert_eq!(order(&server, "carol", "203.0.113.2, 192.0.2.9").await.status, 201);
    // What the client claims stands left of what the proxy has seen.
    order(&server, "dave", "203.0.113.99, 203.0.113.2").await.problem(429);
}

#[tokio::test]
async fn without_a_trusted_proxy_the_peer_counts() {
    for flags in [&[][..], &["--trust-proxy", "192.0.2.0/24"]] {
        let server = alone(&[&["--ip-quota", "1/60s"], flags].concat());
        assert_eq!(order(&server, "alice", "203.0.113.1").await.status, 201);
        order(&server, "bob", "203.0.113.2").await.problem(429);
    }
}

#[tokio::test]
async fn addresses_are_limited_by_default() {
    let server = alone(&["--stock", "iphone=1000"]);
    for user in 0..100 {
        assert_eq!(server.order("iphone", &format!("user-{user}")).await.status, 201);
    }
    let denied = server.order("iphone", "one-more").await;
    denied.problem(429);
    assert_eq!(denied.json()["violated-policies"][0], "ip");
}

#[test]
fn a_network_of_all_clients_is_no_proxy() {
    refuses(
        SECKILL,
        &[
            (&["--trust-proxy", "10.0.0.0/33"], "10.0.0.0/33"),
            (&["--trust-proxy", "10.0.0.1,0.0.0.0/0"], "every client could name its own address"),
            (&["--trust-proxy", "::/00"], "every client could name its own address"),
            (&["--trust-proxy", "::ffff:0:0/96"], "every client could name its own address"),
            (&["--trust-proxy", "0.0.0.0/1,128.0.0.0/1"], "all IPv4 addresses"),
            (&["--trust-proxy", "0.0.0.0/1", "--trust-proxy", "::ffff:128.0.0.0/97"], "all IPv4"),
            (&["--trust-proxy", "::/1", "--trust-proxy", "8000::/1"], "all IPv6 addresses"),
        ],
    );
}

#[test]
fn help_warns_of_an_unnamed_proxy() {
    let help = run(SECKILL, &["--help"]).stdout;
    let help = String::from_utf8(help).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("--trust-proxy"), "{help}");
    assert!(help.contains("all clients share one quota"), "{help}");
    assert!(help.contains("before the opening count"), "{help}");
    assert!(help.contains("bans before the opening"), "{help}");
}
