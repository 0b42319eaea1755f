//! [`Server`]: listens, prints its address, and stops gracefully when it is asked to.

mod client_limits;
mod open_connections;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower::Service;

use self::client_limits::ClientLimits;
pub(crate) use self::open_connections::OpenConnections;
use crate::body::BodyLimits;
use crate::flags::ListenFlags;

/// How long requests may take to end once the server has been asked to stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest request head, in bytes. Each connection may keep as much for the idle timeout, and
/// hyper's default of 400 KiB would be 3 GiB for all connections of `--max-connections`.
const LONGEST_HEAD: usize = 32 * 1024;

/// The clients that may queue at the listener. The system may allow fewer: `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// A server that has its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    limits: ClientLimits,
    /// Becomes true when the server is asked to stop.
    stop: watch::Receiver<bool>,
}

impl Server {
    /// Takes the address of `--listen`, and begins to listen for SIGTERM and SIGINT.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the address is taken.
    pub async fn bind(flags: &ListenFlags) -> Result<Self, ServerError> {
        // Before anything is announced, so that a signal right after that is not missed.
        let stop = signals().map_err(ServerError::system("listen for signals"))?;
        Self::take(flags.listen, "--listen", ClientLimits::of(flags), stop).await
    }

    /// Takes one more address, that of `flag`, for a server that stops together with this one. It has
    /// its own few connections, whatever the clients of this one do.
    ///
    /// # Errors
    ///
    /// As for [`Server::bind`].
    pub async fn bind_beside(
        &self,
        listen: SocketAddr,
        flag: &'static str,
    ) -> Result<Self, ServerError> {
        Self::take(listen, flag, self.limits.for_operators(), self.stop.clone()).await
    }

    async fn take(
        listen: SocketAddr,
        flag: &'static str,
        limits: ClientLimits,
        stop: watch::Receiver<bool>,
    ) -> Result<Self, ServerError> {
        let taken = |source| ServerError::Listen { listen, flag, source };
        let listener = bind(listen).map_err(taken)?;
        let address = listener.local_addr().map_err(ServerError::system("tell the address"))?;
        Ok(Self { listener, address, limits, stop })
    }

    /// Prints where it listens, after a few words that say what for.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if stdout is closed.
    pub fn announce(&self, what: &str) -> Result<(), ServerError> {
        // Connections queue at the listener from the start, so the line is true already.
        let printed = writeln!(io::stdout(), "{what} http://{}", self.address);
        printed.map_err(ServerError::system("print the address to stdout"))
    }

    /// Returns what becomes true when the server is asked to stop. Responses without an end end then.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Serves until it is asked to stop, and then until the requests under way are answered.
    ///
    /// Closes a connection on which no whole request head comes for the idle timeout, and one whose
    /// client takes no byte of a response for the I/O timeout. If all connections are taken, the client
    /// with the most of them gives up the one that is idle longest: one that waits for a request, for
    /// its body, or for the client to take the response. A head of more than 32 KiB gets a 431.
    ///
    /// `axum::serve` has none of these: there a client that sends half a request, or does not read,
    /// keeps its connection for ever. Nor does it answer a client that has closed its side after the
    /// request, as `nc -N` does.
    pub async fn serve(mut self, app: Router) {
        let connections = self.limits.connections.clone();
        let app = app.layer(Extension(BodyLimits::new(self.limits.io_timeout, connections)));
        // Some routes need to know the other end of each connection.
        let mut app = app.into_make_service_with_connect_info::<SocketAddr>();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new());
        http.header_read_timeout(self.limits.idle_timeout).half_close(true);
        http.max_buf_size(LONGEST_HEAD);
        let connections = GracefulShutdown::new();
        loop {
            let accepted = async {
                // This method tries again by itself, with a pause if the system refuses.
                let accepted = Listener::accept(&mut self.listener).await;
                (self.limits.place().await, accepted)
            };
            let (place, (stream, peer)) = tokio::select! {
                accepted = accepted => accepted,
                // An error means that the task of the signals has ended: it does only after one.
                _ = self.stop.wait_for(|asked| *asked) => break,
            };
            let Ok(service) = app.call(peer).await;
            let service = TowerToHyperService::new(service);
            let open = self.limits.connections.add(peer);
            let requests = open.requests();
            let service = service_fn(move |request: Request<Incoming>| {
                let requests = requests.clone();
                let response = service.call(request.map(|body| requests.request_body(body)));
                async move {
                    // Not before the first poll, which waits until the client has taken the last response.
                    let under_way = requests.begin();
                    let response = response.await;
                    drop(under_way);
                    response.map(|response| response.map(|body| requests.response_body(body)))
                }
            });
            let stream = TokioIo::new(self.limits.limited(stream));
            let connection = connections.watch(http.serve_connection(stream, service));
            tokio::spawn(async move {
                tokio::select! {
                    // What has come already is read before the connection may be closed.
                    biased;
                    ended = connection => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection broke");
                        }
                    }
                    () = open.closed() => tracing::debug!("an idle connection made room"),
                }
                // In this order: what waits for the place must not find this connection idle and wait for it.
                drop(open);
                drop(place);
            });
        }
        drop(self.listener);
        if tokio::time::timeout(PATIENCE, connections.shutdown()).await.is_err() {
            tracing::warn!("some requests did not end in time and are cut off");
        }
    }
}

/// Takes an address. With `TcpListener::bind` no more than 128 clients could queue, whatever the
/// system allows.
fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that is started again need not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    socket.listen(BACKLOG)
}

/// Begins to listen for SIGTERM and SIGINT, and for SIGHUP, which otherwise ends a program.
fn signals() -> io::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (ask, asked) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: what --policies names is read again, and nothing else");
                }
            }
        }
        tracing::info!("stopping: requests that are under way are answered first");
        ask.send_replace(true);
    });
    Ok(asked)
}

/// Why a server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address can't be had.
    #[error(
        "can't listen on {listen}: {source}\n\
         hint: stop what listens there, or choose another address with {flag} IP:PORT (port 0 takes \
         a free one)"
    )]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The flag that named it.
        flag: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// The system refuses.
    #[error("can't {what}: {source}")]
    System {
        /// What it refuses.
        what: &'static str,
        /// What went wrong.
        source: io::Error,
    },
}

impl ServerError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
