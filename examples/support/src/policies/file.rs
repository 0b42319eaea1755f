//! [`PolicyFile`]: policies from a file, which a server reads again on SIGHUP.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;

/// The file of `--policies`, in TOML or JSON by its extension.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Toml,
    Json,
}

impl FromStr for PolicyFile {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => return Err(FormatError),
        };
        Ok(Self { path, format })
    }
}

/// The extension of a file names no format.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the name of the file must end in .toml or .json, which is its format")]
pub struct FormatError;

impl PolicyFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`PolicyFileError`] if it can't be read, or is not such a document.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, PolicyFileError> {
        let file = self.path.display().to_string();
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(source) => return Err(PolicyFileError::Unreadable { file, source }),
        };
        let wrong = match self.format {
            Format::Toml => match toml::from_str(&text) {
                Ok(document) => return Ok(document),
                Err(error) => {
                    let message = error.message().replace('\n', ", ");
                    error.span().map_or(String::new(), |span| place(&text, span)) + &message
                }
            },
            Format::Json => match serde_json::from_str(&text) {
                Ok(document) => return Ok(document),
                Err(error) => error.to_string(),
            },
        };
        Err(PolicyFileError::Wrong { file, wrong })
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

/// Returns the line and the column of a part of a text, both counted from 1.
fn place(text: &str, part: Range<usize>) -> String {
    let before = text.get(..part.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    format!("line {line}, column {column}: ")
}

/// Why a file of policies can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// The system can't read it.
    #[error("{file}: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// What went wrong.
        source: io::Error,
    },
    /// It is not a document of policies.
    #[error("{file}: {wrong}")]
    Wrong {
        /// The file.
        file: String,
        /// Where it is wrong, and what is wrong there.
        wrong: String,
    },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_line_and_a_column() {
        for (start, shown) in
            [(0, "line 1, column 1: "), (4, "line 2, column 2: "), (99, "line 3, column 1: ")]
        {
            assert_eq!(place("ä\nbcd\n", start..start), shown);
        }
    }

    #[test]
    fn format_is_that_of_the_extension() {
        for (name, is_format) in
            [("a.toml", true), ("a/b.json", true), ("a.yaml", false), ("toml", false)]
        {
            assert_eq!(name.parse::<PolicyFile>().is_ok(), is_format, "{name}");
        }
    }
}
