//! A call and its connection.

use test_support::Redis;

use super::*;

async fn link(server: &Redis, response_timeout: Duration) -> (Link, Connection) {
    let connection = server.connection().await;
    let connector = Connector::Managed(connection.clone());
    (Link::idle(connector, response_timeout, Outage::new()), Connection::Managed(connection))
}

/// [`Shared::ready`], halted before its last step: nobody is told.
fn connected(link: &Link, connection: Connection) {
    let ready = State::Ready { connection, number: 0, since: Instant::now() };
    link.0.state.store(Arc::new(ready));
}

/// A call may find the new connection before those who wait for one are told of it.
#[tokio::test]
async fn a_call_does_not_take_the_news_of_its_connection_for_the_end_of_it() {
    let server = Redis::start().await;
    let (link, connection) = link(&server, Duration::from_secs(10)).await;
    connected(&link, connection);
    let call = link.call(async |_| {
        sleep(Duration::from_millis(10)).await;
        Ok(())
    });
    let (answer, ()) = tokio::join!(call, async { link.0.changed.notify_waiters() });
    let lost = !matches!(**link.0.state.load(), State::Ready { number: 0, .. });
    assert!(answer.is_ok() && !lost, "{answer:?}, connection lost: {lost}");
}

#[tokio::test]
async fn a_call_ends_with_the_connection_it_waits_on() {
    let server = Redis::start().await;
    let (link, connection) = link(&server, Duration::from_secs(600)).await;
    connected(&link, connection);
    let call = link.call(async |_| std::future::pending::<Result<(), _>>().await);
    let lose = async { link.0.lose(0, State::Failed, Duration::ZERO, &StoreError::Timeout) };
    let both = async { tokio::join!(call, lose).0 };
    let answer = timeout(Duration::from_secs(5), both).await.expect("an answer at once");
    assert!(matches!(answer, Err(StoreError::Disconnected { .. })), "{answer:?}");
}

#[tokio::test]
async fn nobody_waits_for_a_connection_longer_than_for_an_answer() {
    let server = Redis::start().await;
    let (link, _) = link(&server, Duration::from_millis(50)).await;
    // Nobody makes the connection, and nobody tells.
    let attempt = Arc::new(());
    link.0.state.store(Arc::new(State::Connecting(Arc::downgrade(&attempt))));
    let call = link.call(async |_| Ok(()));
    let answer = timeout(Duration::from_secs(5), call).await.expect("an answer in time");
    assert!(matches!(answer, Err(StoreError::Timeout)), "{answer:?}");
}
