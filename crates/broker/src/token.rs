//! The file of a shared token.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("can't read the token file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the token file {} is empty", path.display())]
    Empty { path: PathBuf },
}

/// Reads a token; white space around it doesn't count.
pub fn read_token(path: &Path) -> Result<String, TokenError> {
    let text = fs::read_to_string(path).map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    match text.trim() {
        "" => Err(TokenError::Empty { path: path.to_owned() }),
        token => Ok(token.to_owned()),
    }
}
