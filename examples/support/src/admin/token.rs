//! [`Token`]: what a request to the admin listener has to carry.

use std::fmt;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

/// The fewest characters of a token: 16 random ones can't be guessed.
const SHORTEST: usize = 16;
/// The most characters of a token.
const LONGEST: usize = 256;

/// A secret: 16 to 256 characters of those that a bearer token may have.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// Takes the token as it is given, or as a file holds it.
    pub(super) fn find(given: Option<String>, file: Option<&Path>) -> Result<Self, TokenError> {
        let text = match (given, file) {
            (Some(given), _) => given,
            (None, Some(path)) => std::fs::read_to_string(path)
                .map_err(|source| TokenError::File { path: path.to_owned(), source })?,
            (None, None) => return Err(TokenError::Missing),
        };
        // A file ends with a line's end.
        let text = text.trim_end();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if !(SHORTEST..=LONGEST).contains(&text.len()) || !text.bytes().all(allowed) {
            return Err(TokenError::Text);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns whether this is the token. The time it takes depends on the length only.
    pub(super) fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why there is no token, and what to do about it. No message shows one.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Neither the variable nor a file is set.
    #[error(
        "--admin needs a token\n\
         hint: set the variable that --help shows for --admin-token, to what `openssl rand -hex 32` \
         prints for instance, or name a file that holds it with --admin-token-file"
    )]
    Missing,
    /// The file can't be read.
    #[error(
        "can't read the token in {}: {source}\n\
         hint: let the flag name a file of text that this user may read",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The text is no token.
    #[error(
        "the token is not 16 to 256 characters of A-Z a-z 0-9 - . _ ~ + / =\n\
         hint: take what `openssl rand -hex 32` prints"
    )]
    Text,
}
