//! A rush of requests over two servers on one Redis, and over one without.

use std::collections::HashSet;

use test_support::Redis;
use test_support::server_process::{HttpResponse, Server};

use crate::{alone, count, on_redis, responses};

/// Sends the orders of all these users to the servers in turn, a hundred at once.
async fn rush(servers: &[Server], users: impl Iterator<Item = String>) -> Vec<HttpResponse> {
    let (mut answers, mut orders) = (Vec::new(), users.zip(servers.iter().cycle()).peekable());
    while orders.peek().is_some() {
        let some = orders.by_ref().take(100);
        let some = some.map(|(user, server)| server.spawn(server.order_request("iphone", &user)));
        answers.extend(responses(some).await);
    }
    answers
}

#[tokio::test]
async fn a_flood_of_one_user_is_admitted_five_times() {
    let redis = Redis::start().await;
    let two = [(); 2].map(|()| on_redis(&redis, &["--ip-quota", "off"]));
    for servers in [&two[..], &[alone(&["--ip-quota", "off"])]] {
        let answers = rush(servers, (0..5000).map(|_| "alice".to_owned())).await;
        assert_eq!([201, 409, 429].map(|status| count(&answers, status)), [1, 4, 4995]);
    }
    assert_eq!(redis.run::<usize>(&["ZCARD", "seckill:{=alice}:user:60s"]).await, 5);
}

#[tokio::test]
async fn a_crowd_buys_no_more_than_there_is() {
    let redis = Redis::start().await;
    let flags = ["--ip-quota", "off", "--stock", "iphone=150"];
    let two = [(); 2].map(|()| on_redis(&redis, &flags));
    for servers in [&two[..], &[alone(&flags)]] {
        // Each of 600 users orders three times.
        let answers = rush(servers, (0..1800).map(|index| format!("user-{}", index % 600))).await;
        assert_eq!(count(&answers, 201), 150);
        assert_eq!(count(&answers, 201) + count(&answers, 409) + count(&answers, 410), 1800);
        let sold = answers.iter().filter(|answer| answer.status == 201);
        let buyers: HashSet<_> = sold.map(|answer| answer.json()["user"].to_string()).collect();
        assert_eq!(buyers.len(), 150, "no user bought twice");
    }
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, 150);
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:buyers"]).await, 150);
}

#[test]
fn load_sh_refuses_wrong_flags() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/load.sh");
    for flags in [&["--scale", "0"][..], &["--scale"], &["--scal", "1"], &["flood"]] {
        let output = std::process::Command::new(script).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
    }
}
