use test_support::Redis;

use super::*;

async fn breaker(server: &Redis, response_timeout: Duration) -> (Arc<CircuitBreaker>, Connection) {
    let connector = Connector::One(Box::new(redis::Client::open(server.url()).unwrap()));
    let (connection, _) = connector.connect("mark").await.unwrap();
    let breaker =
        CircuitBreaker::new(connector, response_timeout, Health::new(), "mark".to_owned());
    (breaker, connection)
}

#[tokio::test]
async fn call_ends_with_its_connection() {
    let server = Redis::start().await;
    let (breaker, connection) = breaker(&server, Duration::from_secs(600)).await;
    let ready = State::Ready { connection, number: 0, since: Instant::now() };
    breaker.state.send_replace(ready);
    let call = breaker.call(async |_| std::future::pending::<Result<(), _>>().await);
    let give_up = async { breaker.give_up(0, State::Failed, Duration::ZERO, &StoreError::Timeout) };
    let both = async { tokio::join!(call, give_up).0 };
    let result = timeout(Duration::from_secs(5), both).await.expect("the call ends at once");
    assert!(matches!(result, Err(StoreError::Disconnected { .. })), "{result:?}");
}

#[tokio::test]
async fn wait_for_a_connection_has_a_deadline() {
    let server = Redis::start().await;
    let (breaker, _) = breaker(&server, Duration::from_millis(50)).await;
    // No task makes the connection, and no notification arrives.
    let token = Arc::new(());
    breaker.state.send_replace(State::Connecting(Attempt::new(&token)));
    let call = breaker.call(async |_| Ok(()));
    let result = timeout(Duration::from_secs(5), call).await.expect("the call ends in time");
    assert!(matches!(result, Err(StoreError::Unavailable)), "nothing was sent: {result:?}");
}
