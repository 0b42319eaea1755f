use redis::aio::ConnectionManager;
use test_support::Redis;

use super::*;
use crate::policy::Policy;

fn check() -> Arc<Check> {
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
    Arc::new(Check::new([LogId::new(policy, "alice")]))
}

async fn send(connection: &ConnectionManager, commands: &str) {
    for line in commands.lines() {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        command.exec_async(&mut connection.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn resent_check_that_fails_is_uncertain() {
    let server = Redis::start().await;
    let connection = server.connection().await;
    send(&connection, "HSET clock s 1790000000 us 0\nSET clock:{=alice}:user x").await;
    let check = check();
    let once = DirectStore::with_clock(connection.clone(), "clock");
    let error = once.admit(&check).await.unwrap_err();
    assert!(!error.may_have_counted(), "{error:?}");
    // The last attempt was refused. An earlier one may have run, on another node.
    let error = DirectStore::with_clock(connection, "clock").with_resends().admit(&check).await;
    let error = error.unwrap_err();
    assert!(error.may_have_counted() && matches!(error, StoreError::Uncertain { .. }));
}

#[tokio::test]
async fn resent_check_counts_once() {
    let server = Redis::start().await;
    let connection = server.connection().await;
    send(&connection, "HSET clock s 1790000000 us 0").await;
    let (store, check) = (DirectStore::with_clock(connection, "clock").with_resends(), check());
    for _ in 0..2 {
        assert!(store.admit(&check).await.unwrap().admitted, "it is the same request");
    }
}
