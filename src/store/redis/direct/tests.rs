use redis::aio::ConnectionManager;
use test_support::Redis;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::Admission;

fn check() -> Check {
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
    Check::new([LogId::new(policy, "alice")])
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

/// A store whose calls may be under way for 50 ms, and a request that it has admitted at time zero.
async fn admitted(connection: &ConnectionManager) -> (DirectStore, Check) {
    let store = DirectStore::with_clock(connection.clone(), "clock");
    let store = DirectStore::with(store.0.client.clone(), Duration::from_millis(50), false);
    let check = check();
    send(connection, "HSET clock s 1790000000 us 0").await;
    assert!(store.admit(&check).await.unwrap().admitted);
    (store, check)
}

/// Restores the request as admitted so long ago, and returns how many entries the log lacked.
async fn restore(store: &DirectStore, check: &Check, age: Duration, confirmed: bool) -> u32 {
    let admission = Admission { confirmed, ..Admission::new(check.id, 1, age) };
    let snapshot = LogSnapshot::new(vec![admission]);
    store.restore(&check.logs[0], &snapshot).await.unwrap().added
}

/// A process writes back what it knows of a log. Meanwhile another process resets the log, and the
/// write-back takes a while to arrive: the admission looks newer than the reset.
#[tokio::test]
async fn late_resync_leaves_a_log_reset() {
    let server = Redis::start().await;
    let connection = server.connection().await;
    let (store, check) = admitted(&connection).await;
    send(&connection, "HSET clock us 1000").await;
    store.reset(&check.logs).await.unwrap();
    send(&connection, "HSET clock us 6000").await;
    let restore = async |age_us, confirmed| {
        restore(&store, &check, Duration::from_micros(age_us), confirmed).await
    };
    assert_eq!(restore(2_000, true).await, 0, "it was sent at 2000, one millisecond late");
    assert_eq!(restore(2_000, false).await, 1, "Redis never had it");
    store.reset(&check.logs).await.unwrap();
    send(&connection, "HSET clock us 60000").await;
    assert_eq!(restore(0, true).await, 1, "no call takes so long: Redis has lost it since");
}

#[tokio::test]
async fn late_resync_revives_no_old_entry() {
    let server = Redis::start().await;
    let connection = server.connection().await;
    let (store, check) = admitted(&connection).await;
    send(&connection, "HSET clock s 1790000060 us 5000").await;
    let restore = async |age_ms| restore(&store, &check, Duration::from_millis(age_ms), true).await;
    assert_eq!(restore(59_999).await, 0, "it was sent a millisecond before the entry left");
    assert_eq!(restore(59_949).await, 1, "no call takes so long: Redis has lost it");
}
