//! [`Server`]: listens, prints its address, and stops gracefully when it is asked to.

mod client_limits;
mod open_connections;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower::Service;

use self::client_limits::ClientLimits;
use crate::body::BodyTimeout;
use crate::flags::ListenFlags;

/// How long requests may take to end once the server has been asked to stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest request head, in bytes. Each connection may keep as much for the idle timeout, and
/// hyper's default of 400 KiB would be 3 GiB for all connections of `--max-connections`.
const LONGEST_HEAD: usize = 32 * 1024;

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
        let listener = TcpListener::bind(listen).await.map_err(taken)?;
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
    /// client takes no byte of a response for the I/O timeout. If all connections are taken, those
    /// that are idle longest are closed for new ones. A head of more than 32 KiB gets a 431.
    ///
    /// `axum::serve` has none of these: there a client that sends half a request, or does not read,
    /// keeps its connection for ever. Nor does it answer a client that has closed its side after the
    /// request, as `nc -N` does.
    pub async fn serve(mut self, app: Router) {
        let app = app.layer(Extension(BodyTimeout(self.limits.io_timeout)));
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
            let open = self.limits.connections.add();
            let requests = open.requests();
            let service = service_fn(move |request| {
                let (under_way, response) = (requests.begin(), service.call(request));
                async move {
                    let response = response.await;
                    drop(under_way);
                    response
                }
            });
            let stream = TokioIo::new(self.limits.limited(stream));
            let connection = connections.watch(http.serve_connection(stream, service));
            tokio::spawn(async move {
                tokio::select! {
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
