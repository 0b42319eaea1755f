//! [`Server`]: listens, prints its address, and stops when it is asked to.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::flags::ListenFlags;
use crate::serve::serve;
use crate::shutdown::{self, Stop};

/// Logs to stderr what `RUST_LOG` asks for, or else from `info` on. Stdout carries only what the
/// program is run for.
pub fn log_to_stderr() {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let targets: Targets = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // Without this, it panics when stderr has been closed, as in `2>&1 | head`.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
}

/// Prints an error, if there is one, to stderr, and returns the exit code of the process.
pub fn exit_code(result: Result<(), impl std::error::Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server that has its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    idle_timeout: Duration,
    stop: Stop,
}

impl Server {
    /// Takes the address of `--listen`, and begins to listen for signals.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the address is taken.
    pub async fn bind(flags: &ListenFlags) -> Result<Self, ServerError> {
        // Before anything is announced, so that a signal right after that is not missed.
        let stop = shutdown::signals().map_err(ServerError::Signals)?;
        Self::take(flags.listen, "--listen", flags.idle_timeout.0, stop).await
    }

    /// Takes one more address, that of `flag`, for a server that stops together with this one.
    ///
    /// # Errors
    ///
    /// As for [`Server::bind`].
    pub async fn bind_beside(
        &self,
        listen: SocketAddr,
        flag: &'static str,
    ) -> Result<Self, ServerError> {
        Self::take(listen, flag, self.idle_timeout, self.stop.clone()).await
    }

    async fn take(
        listen: SocketAddr,
        flag: &'static str,
        idle_timeout: Duration,
        stop: Stop,
    ) -> Result<Self, ServerError> {
        let listener = TcpListener::bind(listen).await.map_err(|source| ServerError::Listen {
            listen,
            flag,
            source,
        })?;
        let address = listener.local_addr().map_err(ServerError::Address)?;
        Ok(Self { listener, address, idle_timeout, stop })
    }

    /// Prints where it listens, after a few words that say what for.
    ///
    /// # Errors
    ///
    /// [`ServerError::Announce`] if stdout is closed.
    pub fn announce(&self, what: &str) -> Result<(), ServerError> {
        // Connections queue at the listener from the start, so the line is true already.
        writeln!(std::io::stdout(), "{what} http://{}", self.address).map_err(ServerError::Announce)
    }

    /// Serves until the server is asked to stop, and then until the requests under way are answered.
    pub async fn serve(self, app: Router) {
        serve(self.listener, app, self.idle_timeout, self.stop).await;
    }
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
        source: std::io::Error,
    },
    /// Stdout is closed.
    #[error("can't print the address to stdout: {0}")]
    Announce(std::io::Error),
    /// The system refuses.
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    /// The system refuses.
    #[error("can't tell the address that was taken: {0}")]
    Address(std::io::Error),
}
