use test_support::Redis;
use test_support::warnings::Warnings;

use super::*;

async fn breaker(server: &Redis, response_timeout: Duration) -> (Arc<CircuitBreaker>, Connection) {
    let servers = RedisServers::one(server.url()).unwrap();
    let (connection, _) = servers.connect("mark").await.unwrap();
    let breaker =
        CircuitBreaker::new(servers, response_timeout, Health::default(), "mark".to_owned());
    (breaker, connection)
}

#[tokio::test]
async fn call_ends_with_its_connection() {
    let server = Redis::start().await;
    let (breaker, connection) = breaker(&server, Duration::from_secs(600)).await;
    breaker.set_connection(0, connection);
    let call = breaker.call(async |_| std::future::pending::<Result<(), _>>().await);
    let give_up = async { breaker.record_result::<()>(0, &Err(StoreError::Timeout)) };
    let both = async { tokio::join!(call, give_up).0 };
    let result = timeout(Duration::from_secs(5), both).await.expect("the call ends at once");
    assert!(matches!(result, Err(StoreError::Disconnected { .. })), "{result:?}");
}

#[tokio::test]
async fn wait_for_a_connection_has_a_deadline() {
    let server = Redis::start().await;
    let (breaker, _) = breaker(&server, Duration::from_millis(50)).await;
    // No task makes the connection, and no notification arrives.
    let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
    breaker.state.send_modify(|state| state.task = Some(task));
    let call = breaker.call(async |_| Ok(()));
    let result = timeout(Duration::from_secs(5), call).await.expect("the call ends in time");
    assert!(matches!(result, Err(StoreError::Unavailable)), "nothing was sent: {result:?}");
}

/// As with its runtime. Nobody knows why it has failed, so no call waits for the next one.
#[tokio::test]
async fn task_that_has_ended_is_replaced() {
    let server = Redis::start().await;
    let (breaker, _) = breaker(&server, Duration::from_secs(600)).await;
    let task = tokio::spawn(async {});
    breaker.state.send_modify(|state| state.task = Some(task.abort_handle()));
    task.await.unwrap();
    assert!(breaker.call(async |_| Ok(())).await.is_err());
    let connected = async {
        while !breaker.is_connected() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONGEST_ATTEMPT / 2, connected).await.expect("another one connects");
}

/// Such as that of a user who may not run scripts on a proxy that closes the connection for it.
#[tokio::test]
async fn connection_that_breaks_at_each_call_is_made_ever_more_rarely() {
    let server = Redis::start().await;
    let (breaker, _) = breaker(&server, Duration::from_secs(600)).await;
    let breaks = || {
        breaker.call(async |_| -> Result<(), _> {
            Err(StoreError::Disconnected { message: "closed by the server".to_owned() })
        })
    };
    let before = server.stat("total_connections_received").await;
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(breaks().await.is_err());
        sleep(Duration::from_millis(1)).await;
    }
    let made = server.stat("total_connections_received").await - before;
    assert!((3..20).contains(&made), "{made} connections");
    // One that is of use ends that.
    while breaker.call(async |_| Ok(())).await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..2 {
        assert!(breaks().await.is_err());
        assert!(breaker.call(async |_| Ok(())).await.is_ok(), "it is made again at once");
    }
}

#[tokio::test]
async fn outage_is_reported_once_in_a_while() {
    let server = Redis::start().await;
    let (breaker, _) = breaker(&server, Duration::from_secs(1)).await;
    let warnings = Warnings::listen();
    let refused = StoreError::Unreachable { message: "refused".to_owned() };
    for lines in 1..3 {
        for _ in 0..2 {
            breaker.report_lost(&refused);
            assert_eq!(warnings.lines().len(), lines);
        }
        breaker.reported().as_mut().unwrap().0 -= REPORT_PAUSE;
    }
    // A warning names the server, also one that is silent.
    breaker.report_lost(&StoreError::Timeout);
    let named = format!("127.0.0.1:{}: the store did not reply in time", server.port());
    assert!(warnings.lines()[2].contains(&named), "{:?}", warnings.lines());
}

/// It has the replication ID of its master, and may lack what that one did not send. A master that lacks replicas for a while
/// can't renew its mark, and has lost nothing.
#[tokio::test]
async fn replica_is_another_server_and_a_master_without_replicas_is_not() {
    let master = Redis::start().await;
    let replica = master.start_replica().await;
    let (breaker, _) = breaker(&master, Duration::from_secs(1)).await;
    for wanted in ["0", "2", "0"] {
        master.command(&format!("CONFIG SET min-replicas-to-write {wanted}")).await;
        breaker.connect().await.unwrap();
        assert_eq!(breaker.health.losses(), 0);
    }
    let servers = RedisServers::one(replica.url()).unwrap();
    let (_, server) = servers.connect("mark").await.unwrap();
    breaker.note_server(server, true);
    assert_eq!(breaker.health.losses(), 1);
}
