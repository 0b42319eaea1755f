//! [`PolicyFile`]: policies from a file, which a server reads again on SIGHUP.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;

/// The file of `--policies`, in TOML or JSON by its extension.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    path: PathBuf,
    is_json: bool,
}

impl FromStr for PolicyFile {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let path = PathBuf::from(text);
        let is_json = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => false,
            Some("json") => true,
            _ => {
                return Err("the name of the file must end in .toml or .json, which is its format");
            }
        };
        Ok(Self { path, is_json })
    }
}

impl PolicyFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// A text that says where the file is wrong, if it can't be read or is not such a document.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        let wrong = |what: String| format!("{}: {what}", self.path.display());
        let text = std::fs::read_to_string(&self.path).map_err(|error| wrong(error.to_string()))?;
        if self.is_json {
            return serde_json::from_str(&text).map_err(|error| wrong(error.to_string()));
        }
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or(&text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
            let message = error.message().replace('\n', ", ");
            wrong(format!("line {line}, column {column}: {message}"))
        })
    }

    /// Says why a server can't start with this file, and what to do about it.
    pub fn unusable(&self, error: impl Display) -> Box<dyn Error> {
        format!(
            "can't use the policies of --policies: {error}\n\
             hint: correct {}, or leave --policies out; --help shows such a file",
            self.path.display()
        )
        .into()
    }

    /// Begins to listen for SIGHUP, which otherwise ends a program.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn reloads(&self) -> io::Result<Reloads> {
        Ok(Reloads { file: self.clone(), hangups: signal(SignalKind::hangup())? })
    }
}

/// The signals that have a server read its policies again.
pub struct Reloads {
    file: PolicyFile,
    hangups: Signal,
}

impl Reloads {
    /// Waits for the next SIGHUP, and reads the file again. Logs why, if it can't be read, and waits on.
    ///
    /// Several signals that come meanwhile are one.
    pub async fn next<T: DeserializeOwned + Send + 'static>(&mut self) -> Option<T> {
        while self.hangups.recv().await.is_some() {
            let file = self.file.clone();
            // A file system may be slow.
            match spawn_blocking(move || file.read()).await {
                Ok(Ok(document)) => return Some(document),
                Ok(Err(error)) => report(Err(error)),
                Err(panic) => report(Err(panic)),
            }
        }
        None
    }
}

/// Logs what a reload has changed, or why it has changed nothing.
pub fn report(changed: Result<String, impl Display>) {
    match changed {
        Ok(changes) if changes.is_empty() => {
            tracing::info!("the policies were read again: nothing has changed");
        }
        Ok(changes) => tracing::info!(?changes, "the policies were read again"),
        Err(error) => {
            let error = error.to_string();
            tracing::error!(?error, "the policies stay as they were: correct the file");
        }
    }
}
