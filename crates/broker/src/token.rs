//! Reads a token file.

use std::io;
use std::path::{Path, PathBuf};
use toolbus_base::{read_private_text, read_trusted_text};

/// Why a token file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("can't read the token file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is empty or has only whitespace.
    #[error("the token file {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a token from a file and trims surrounding whitespace. The file must not be another user's, or writable by all:
/// its author would choose the identity, and read what is sent to it.
pub fn read_token(path: &Path) -> Result<String, TokenError> {
    token_in(path, read_trusted_text(path))
}

/// Reads a token from a file of a data folder, which must not be a link or another user's.
pub fn read_private_token(path: &Path) -> Result<String, TokenError> {
    token_in(path, read_private_text(path))
}

fn token_in(path: &Path, text: io::Result<String>) -> Result<String, TokenError> {
    let text = text.map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    match text.trim() {
        "" => Err(TokenError::Empty { path: path.to_owned() }),
        token => Ok(token.to_owned()),
    }
}
