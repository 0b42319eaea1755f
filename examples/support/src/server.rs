//! [`Server`]: an HTTP/1 server with bounds on what clients can take of it, that stops gracefully.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::Service;

use crate::flags::ListenFlags;
use crate::logs::Throttle;

/// How long requests may take to end once the server has been asked to stop, and responses on a full server.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// A connection on which no whole request head has come for so long is closed.
const IDLE: Duration = Duration::from_secs(75);
/// How long a client may take over the body of a request, or take no byte of a response.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// The longest request head, in bytes. With hyper's default of 400 KiB, 8192 connections could take 3 GiB.
const LONGEST_HEAD: usize = 32 * 1024;
/// The clients that may queue at the listener. The system may allow fewer: `net.core.somaxconn`.
const BACKLOG: u32 = 4096;
/// The connections of a listener for operators.
const OPERATORS: usize = 64;
/// File descriptors that are not for clients: those of Redis, of the listeners, and the like.
const OTHER_DESCRIPTORS: usize = 128;

static FULL: Throttle = Throttle::new();
static CUT_OFF: Throttle = Throttle::new();

/// A server that has its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    /// How many connections may be open: no more than the system allows.
    pub max_connections: usize,
    patience: Duration,
    /// Becomes true when the server is asked to stop.
    stop: watch::Receiver<bool>,
}

impl Server {
    /// Takes the address of `--listen`, and begins to listen for SIGTERM and SIGINT.
    pub async fn bind(flags: &ListenFlags) -> Result<Self, ServerError> {
        // Before anything is announced, so that a signal right after that is not missed.
        let stop = signals()?;
        let (listener, address) = bind(flags.listen, "--listen")?;
        let max_connections = allowed(flags.max_connections.get() as usize);
        Ok(Self { listener, address, max_connections, patience: PATIENCE, stop })
    }

    /// Sets how long a response may take when all connections are taken. Defaults to ten seconds.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Takes one more address, that of `flag`, for a server that stops together with this one. It has
    /// its own few connections, whatever the clients of this one do.
    pub(crate) async fn bind_beside(
        &self,
        listen: SocketAddr,
        flag: &'static str,
    ) -> Result<Self, ServerError> {
        let ((listener, address), stop) = (bind(listen, flag)?, self.stop.clone());
        Ok(Self { listener, address, max_connections: OPERATORS, patience: PATIENCE, stop })
    }

    /// Prints where it listens, after a few words that say what for.
    pub(crate) fn announce(&self, what: &str) -> Result<(), ServerError> {
        // Connections queue at the listener from the start, so the line is true already.
        Ok(writeln!(io::stdout(), "{what} http://{}", self.address)?)
    }

    /// Returns what becomes true when the server is asked to stop. Responses without an end end then.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Serves until it is asked to stop, and then until the requests under way are answered.
    ///
    /// When all connections are taken, each of them ends: at once if it waits for a request, and otherwise
    /// after its response, or when its [`patience`](Self::patience) ends. New clients wait meanwhile.
    pub(crate) async fn serve(mut self, app: Router) {
        // Some routes need to know the other end of each connection.
        let mut app = app.into_make_service_with_connect_info::<SocketAddr>();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(LONGEST_HEAD);
        let places = Arc::new(Semaphore::new(self.max_connections));
        // Each connection has a receiver. When the sender is dropped, they end.
        let mut open = watch::Sender::new(());
        loop {
            let accepted = async {
                // This method tries again by itself, with a pause if the system refuses.
                let accepted = Listener::accept(&mut self.listener).await;
                if places.available_permits() == 0 {
                    FULL.log(|times| tracing::warn!(times, "all connections are taken"));
                    open = watch::Sender::new(());
                }
                (Arc::clone(&places).acquire_owned().await, accepted)
            };
            let (place, (stream, peer)) = tokio::select! {
                accepted = accepted => accepted,
                // An error means that the task of the signals has ended: it does only after one.
                _ = self.stop.wait_for(|asked| *asked) => break,
            };
            // Else the second response of a pipeline waits for the acknowledgement of the first.
            let _ = stream.set_nodelay(true);
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(IO_TIMEOUT));
            let Ok(service) = app.call(peer).await;
            let stream = TokioIo::new(Box::pin(stream));
            let connection = http.serve_connection(stream, TowerToHyperService::new(service));
            let (mut is_open, patience) = (open.subscribe(), self.patience);
            tokio::spawn(async move {
                let (_place, mut connection) = (place, pin!(connection));
                // An error is a client that has gone. Biased: a request that has come already is read first.
                tokio::select! {
                    biased;
                    _ = connection.as_mut() => return,
                    _ = is_open.changed() => connection.as_mut().graceful_shutdown(),
                }
                if timeout(patience, connection).await.is_err() {
                    CUT_OFF.log(|times| tracing::warn!(times, "connections are cut off"));
                }
            });
        }
        drop((self.listener, open));
        if timeout(PATIENCE, places.acquire_many(self.max_connections as u32)).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut off");
        }
    }
}

/// Returns how many of the wanted connections the system allows. Raises the number of files that the
/// process may open, if it can: the default of 1024 is less than a sale needs.
fn allowed(wanted: usize) -> usize {
    let files = rlimit::increase_nofile_limit((wanted + OTHER_DESCRIPTORS) as u64);
    let files = files.map_or(usize::MAX, |limit| limit as usize);
    let connections = wanted.min(files.saturating_sub(OTHER_DESCRIPTORS).max(1));
    if connections < wanted {
        tracing::warn!(connections, "fewer than --max-connections: raise `ulimit -Hn`");
    }
    connections
}

/// Takes an address. With `TcpListener::bind` no more than 128 clients could queue, whatever the
/// system allows.
fn bind(listen: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), ServerError> {
    let bound = || {
        let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A server that is started again need not wait for the connections of the one before.
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|source| ServerError::Listen { listen, flag, source })
}

fn signals() -> io::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ask, asked) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: requests that are under way are answered first");
        ask.send_replace(true);
    });
    Ok(asked)
}

/// Why a server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ServerError {
    #[error(
        "can't listen on {listen}: {source}\n\
         hint: stop what listens there, or choose another address with {flag} IP:PORT (port 0 takes \
         a free one)"
    )]
    Listen { listen: SocketAddr, flag: &'static str, source: io::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;
    use crate::problem::WholeBody;

    /// The response takes three seconds.
    const LATE: &[u8] = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";

    /// Serves with two connections until it is asked to stop.
    async fn serve(patience: Duration) -> (SocketAddr, watch::Sender<bool>, JoinHandle<()>) {
        let flags = ListenFlags {
            listen: "127.0.0.1:0".parse().unwrap(),
            max_connections: std::num::NonZeroU32::new(2).unwrap(),
        };
        let (ask, stop) = watch::channel(false);
        let server = Server { stop, ..Server::bind(&flags).await.unwrap().patience(patience) };
        let address = server.address;
        let large = axum::body::Bytes::from(vec![b'a'; 64 * 1024]);
        let routes = Router::new().route("/", post(async |_: WholeBody| "read"));
        let routes = routes.route("/large", get(async move || large));
        let routes = routes.route("/slow", get(|| tokio::time::sleep(Duration::from_secs(3))));
        (address, ask, tokio::spawn(server.serve(routes)))
    }

    async fn connect(server: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Reads until the server closes, and returns the start of what it sent.
    async fn start(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        let _ = timeout(Duration::from_secs(30), read).await.expect("it is closed");
        String::from_utf8_lossy(&bytes[..bytes.len().min(12)]).into_owned()
    }

    #[tokio::test]
    async fn a_long_head_is_refused() {
        let (server, _ask, _) = serve(PATIENCE).await;
        for (length, answers) in [(30, ["HTTP/1.1 200"; 2]), (100, ["HTTP/1.1 431", ""])] {
            let x = "x".repeat(length * 1024);
            let head =
                format!("GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: {x}\r\n\r\n");
            let answer = start(connect(server, head.as_bytes()).await).await;
            assert!(answers.contains(&&*answer), "{length} KiB: {answer:?}");
        }
    }

    /// Two clients take all connections. Then a third one is answered.
    #[tokio::test]
    async fn slow_clients_do_not_hold_a_full_server() {
        let whole = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi";
        let half = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
        let unread = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(500);
        let cases: [(u64, &[u8], &str); 7] = [
            (100, b"", ""),
            (2, b"POST / HTT", ""),
            (100, whole, "HTTP/1.1 200"),
            (100, half, "HTTP/1.1 408"),
            (100, &unread, "HTTP/1.1 200"),
            (1, LATE, ""),
            (100, LATE, "HTTP/1.1 200"),
        ];
        for (patience, slow, answer) in cases {
            let (server, _ask, _) = serve(Duration::from_secs(patience)).await;
            let [one, two] = [connect(server, slow).await, connect(server, slow).await];
            let post = b"POST / HTTP/1.0\r\ncontent-length: 2\r\n\r\nhi";
            assert_eq!(start(connect(server, post).await).await, "HTTP/1.0 200");
            assert_eq!([start(one).await, start(two).await], [answer; 2]);
        }
    }

    /// Also of those that were told to end before, because all connections were taken.
    #[tokio::test]
    async fn requests_under_way_are_answered_before_the_end() {
        let ((server, ask, served), begun) = (serve(PATIENCE).await, Instant::now());
        let [one, two] = [connect(server, LATE).await, connect(server, LATE).await];
        let _third = connect(server, b"").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask.send_replace(true);
        served.await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(3), "it has waited for them");
        assert_eq!([start(one).await, start(two).await], ["HTTP/1.1 200"; 2]);
    }
}
