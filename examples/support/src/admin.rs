//! [`Admin`]: a second listener, for the operator of a server.
//!
//! It listens on a loopback address, which is not enough: a page in a browser on this machine can
//! send requests there, under a name that it has pointed at 127.0.0.1 (DNS rebinding), and a proxy on
//! this machine can forward the requests of strangers. So each request must name a loopback host, must
//! not be forwarded, must not come from a page of another site, and must carry a token.

#[cfg(feature = "metrics")]
mod exporter;
mod guard;
mod page;
mod token;

use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;

use axum::Router;
use clap::Args;

pub use self::page::{PageQuery, no_page, page};
pub use self::token::TokenError;

use self::token::Token;
use crate::server::{Server, ServerError};

/// Where the admin listener is, and its token. It is off if `--admin` is left out.
///
/// `mut_arg` gives `--admin-token` the environment variable of the server.
#[derive(Args)]
pub struct AdminFlags {
    /// Loopback address of the admin listener; port 0 takes a free one. The server prints the address
    /// in a second line. Needs a token. Off if left out.
    #[arg(long, value_name = "IP:PORT", value_parser = loopback)]
    pub admin: Option<SocketAddr>,

    /// Token that requests to --admin carry, 16 characters or more. Every user of this machine can
    /// see it in `ps`: better set the variable, or use --admin-token-file.
    // Text here, so that an error of clap, which repeats the value, can't show a token.
    #[arg(long, value_name = "TOKEN", hide_env_values = true, conflicts_with = "admin_token_file")]
    admin_token: Option<String>,

    /// File that holds the token for --admin.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_token_file: Option<PathBuf>,

    /// File that holds a token with which Prometheus can read GET /metrics on --admin, and nothing else.
    /// The token of the operator reads it too.
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "FILE", requires = "admin")]
    scrape_token_file: Option<PathBuf>,
}

/// An admin listener that has its address.
pub struct Admin {
    server: Server,
    token: Token,
    #[cfg(feature = "metrics")]
    exporter: exporter::Exporter,
    #[cfg(feature = "metrics")]
    scrape_token: Option<Token>,
}

impl Admin {
    /// Takes the address of `--admin`, if it is there, for a listener that stops together with the
    /// server of the clients.
    ///
    /// # Errors
    ///
    /// [`AdminError`] if there is no token or the address is taken.
    pub async fn bind(flags: &AdminFlags, clients: &Server) -> Result<Option<Self>, AdminError> {
        let Some(listen) = flags.admin else { return Ok(None) };
        let token = Token::find(flags.admin_token.clone(), flags.admin_token_file.as_deref())?;
        #[cfg(feature = "metrics")]
        let scrape_token = match flags.scrape_token_file.as_deref() {
            Some(file) => Some(Token::find(None, Some(file))?),
            None => None,
        };
        let server = clients.bind_beside(listen, "--admin").await?;
        Ok(Some(Self {
            server,
            token,
            #[cfg(feature = "metrics")]
            exporter: exporter::Exporter::install()?,
            #[cfg(feature = "metrics")]
            scrape_token,
        }))
    }

    /// Prints where it listens.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if stdout is closed.
    pub fn announce(&self) -> Result<(), ServerError> {
        self.server.announce("admin on")
    }

    /// Serves these routes, and only requests with the token, until it is asked to stop.
    ///
    /// With the feature `metrics` it also serves `GET /metrics`, in the text format of Prometheus.
    pub async fn serve(self, routes: Router) {
        self.serve_with_pages(routes, Router::new()).await;
    }

    /// Serves these routes as [`Admin::serve`] does, and `pages` also without the token, which a browser
    /// can't send when it opens a page. The pages hold nothing but what is in the program's source, and
    /// send the token with each request for more.
    pub async fn serve_with_pages(self, routes: Router, pages: Router) {
        #[cfg(feature = "metrics")]
        let pages = {
            let tokens = [Some(self.token.clone()), self.scrape_token].into_iter().flatten();
            pages.merge(guard::with_one_of(self.exporter.routes(), tokens))
        };
        self.server.serve(guard::guarded(routes, pages, self.token)).await;
    }
}

/// Why there is no admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// There is no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The address can't be had.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The metrics can't be recorded.
    #[cfg(feature = "metrics")]
    #[error(transparent)]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// Reads an address that only this machine can reach.
///
/// # Errors
///
/// [`LoopbackError`] if it is no such address.
pub fn loopback(text: &str) -> Result<SocketAddr, LoopbackError> {
    let address: SocketAddr = text.parse()?;
    if address.ip().is_loopback() { Ok(address) } else { Err(LoopbackError::Reachable) }
}

/// What is wrong with the text of `--admin`.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoopbackError {
    /// Not an address with a port.
    #[error("{0}: write IP:PORT, such as 127.0.0.1:3001 or [::1]:3001")]
    Address(#[from] AddrParseError),
    /// Not an address of this machine alone.
    #[error("other machines could reach it: the IP must be of 127.0.0.0/8 or ::1")]
    Reachable,
}
