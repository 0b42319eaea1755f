//! [`Server`]: listens, says where, and stops when asked to.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use super::flags::ListenFlags;
use super::serve::serve;
use super::shutdown::{self, Stop};

/// Logs to stderr what `RUST_LOG` asks for, or else from `level` on. Stdout carries only what the
/// program is run for.
pub(crate) fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        // Else it panics wherever something is logged once nobody reads it, as in `2>&1 | head`.
        .log_internal_errors(false)
        .init();
}

/// Tells on stderr of what went wrong, if anything did, and in the process's exit code.
pub(crate) fn exit_code(result: Result<(), impl std::error::Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server that has its address and can be told to stop.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    idle_timeout: Duration,
    stop: Stop,
}

impl Server {
    /// Takes the address that `--listen` names, and begins to listen for signals.
    pub(crate) async fn bind(flags: &ListenFlags) -> Result<Self, ServerError> {
        // Before anything is announced, so that a signal right after that is not missed.
        let stop = shutdown::signals().map_err(ServerError::Signals)?;
        Self::take(flags.listen, "--listen", flags.idle_timeout.0, stop).await
    }

    /// Takes one more address, that `flag` names, for a server that stops with this one.
    pub(crate) async fn bind_beside(
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
    pub(crate) fn announce(&self, what: &str) -> Result<(), ServerError> {
        // Connections queue at the listener from the start, so the line is true already.
        writeln!(std::io::stdout(), "{what} http://{}", self.address).map_err(ServerError::Announce)
    }

    /// Serves until the server is told to stop, and then until the requests under way are answered.
    /// Whoever sends no whole head of a request for `--idle-timeout` is hung up on.
    pub(crate) async fn serve(self, app: Router) {
        serve(self.listener, app, self.idle_timeout, self.stop).await;
    }
}

/// Why a server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(
        "can't listen on {listen}: {source}\n\
         hint: stop what listens there, or choose another address with {flag} IP:PORT (port 0 takes \
         a free one)"
    )]
    Listen { listen: SocketAddr, flag: &'static str, source: std::io::Error },
    #[error("can't print the address to stdout: {0}")]
    Announce(std::io::Error),
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't tell the address that was taken: {0}")]
    Address(std::io::Error),
}
