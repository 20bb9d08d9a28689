//! The token file: read it, or make one that only its owner can read.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("can't read the token file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("can't write the token file {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the token file {} is empty", path.display())]
    Empty { path: PathBuf },
    #[error("no randomness to make a token from: {0}")]
    Random(String),
}

/// Reads a token; white space around it doesn't count.
pub fn read_token(path: &Path) -> Result<String, TokenError> {
    let text = fs::read_to_string(path).map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    match text.trim() {
        "" => Err(TokenError::Empty { path: path.to_owned() }),
        token => Ok(token.to_owned()),
    }
}

/// Reads the token, or makes a random one (256 bits) when there is no such file.
pub fn read_or_create_token(path: &Path) -> Result<String, TokenError> {
    match read_token(path) {
        Err(TokenError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut random = [0u8; 32];
    getrandom::fill(&mut random).map_err(|error| TokenError::Random(error.to_string()))?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{token}")?;
        file.sync_all()
    };
    write().map_err(|source| TokenError::Write { path: path.to_owned(), source })?;
    Ok(token)
}
