//! [`serve`]: the connections of a server.

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

use crate::shutdown::Stop;

/// Serves until it is asked to stop, and then until the requests under way are answered. Closes a
/// connection on which no whole request head comes for `idle_timeout`.
///
/// `axum::serve` has no such timeout: there a client that sends half a request keeps its connection
/// for ever. Nor does it answer a client that has closed its side after the request, as `nc -N` does.
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
            // This method tries again by itself, with a pause if there are too many connections.
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
