//! [`Program`]: a `redis-server` to measure with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// A server program and its name in the tables.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Program {
    /// Returns the `redis-server` on `PATH`, named as it names itself, such as `Redis 7.0.15`.
    pub(crate) fn of_system() -> Result<Self> {
        let path = PathBuf::from("redis-server");
        let version = Command::new(&path).arg("--version").output();
        let version = version.context("can't start redis-server: is it installed?")?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let mut words = version.split_whitespace();
        let kind = words.next().unwrap_or("Redis");
        let number = words.find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
        Ok(Self { name: format!("{kind} {number}"), path })
    }
}

impl FromStr for Program {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, path)) = text.split_once('=') else {
            bail!("`{text}` has no `=`: write NAME=PATH, as in valkey-9.1=servers/valkey-9.1");
        };
        ensure!(!name.is_empty(), "`{text}` has no name before the `=`");
        let path = Path::new(path);
        let path = if path.is_dir() { path.join("redis-server") } else { path.to_owned() };
        ensure!(path.is_file(), "there is no redis-server at {}", path.display());
        Ok(Self { name: name.to_owned(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_needs_a_name_and_a_program() {
        for (text, part) in [("redis", "no `=`"), ("=/x", "no name"), ("a=/none", "/none")] {
            let error = text.parse::<Program>().err().map(|error| error.to_string());
            assert!(error.as_deref().is_some_and(|it| it.contains(part)), "{text}: {error:?}");
        }
    }
}
