//! [`serve`]: connections, and what a client may do to them.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::Service;

use super::shutdown::Stop;

/// Serves until it is asked to stop, and then until the requests under way are answered. Whoever
/// sends no whole head of a request for `idle_timeout` is hung up on.
///
/// `axum::serve` does the same without a timer: whoever sends half a request there keeps the
/// connection for ever, and a thousand of those keep everyone else out. Nor does it answer who has
/// closed their side after the request, as `nc -N` does, and such an order might stand unanswered.
pub(crate) async fn serve(
    mut listener: TcpListener,
    app: Router,
    idle_timeout: Duration,
    stop: Stop,
) {
    // Some routes need to know the other end of each connection.
    let mut app = app.into_make_service_with_connect_info::<SocketAddr>();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(idle_timeout).half_close(true);
    let connections = GracefulShutdown::new();
    let mut asked = pin!(stop.clone().asked());
    loop {
        let (stream, peer) = tokio::select! {
            // This one retries by itself, with a pause if there are too many connections.
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut asked => break,
        };
        let Ok(service) = app.call(peer).await;
        let service = TowerToHyperService::new(service);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    drop(listener);
    tokio::select! {
        () = connections.shutdown() => {}
        () = stop.over() => tracing::warn!("some requests did not end in time and are cut off"),
    }
}
