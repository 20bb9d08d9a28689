//! Fetches secrets and caches them for their TTL.

use super::{Source, exec};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use toolbus_base::open_trusted;

/// Size limit of a secret. Headers and environment variables are never that long.
pub(super) const MAX_SECRET_BYTES: usize = 64 << 10;
const READ_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Fetched(HashMap<Source, Value>);

#[derive(Clone)]
pub(super) struct Value {
    pub text: String,
    pub expires: Instant,
}

impl Fetched {
    /// The error never quotes what was read.
    pub async fn value(&mut self, source: &Source, ttl: Duration, force: bool) -> Result<Value, String> {
        let now = Instant::now();
        if let Some(value) = self.0.get(source).filter(|value| value.expires > now && !force) {
            return Ok(value.clone());
        }
        let bytes = match source {
            Source::File(path) => read(path).await?,
            Source::Exec(words) => exec::run(words).await?,
        };
        let mut text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        if text.contains('\0') {
            return Err("it has a NUL byte".to_owned());
        }
        let value = Value { text, expires: now + ttl };
        self.0.insert(source.clone(), value.clone());
        Ok(value)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    let path = expand_home(path);
    let reading = async {
        // It may decide for whom a server works, so it must not be another user's.
        let opening =
            tokio::task::spawn_blocking(move || open_trusted(&path)).await.map_err(|error| error.to_string())?;
        let file = tokio::fs::File::from_std(opening.map_err(|error| error.to_string())?);
        let mut bytes = Vec::new();
        file.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
        Ok(bytes)
    };
    // The file may be a FIFO without a writer.
    let bytes: Result<_, String> = tokio::time::timeout(READ_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(format!("it could not be read within {READ_TIMEOUT:?}")));
    bytes.and_then(within_limit)
}

pub(super) fn within_limit(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if bytes.len() > MAX_SECRET_BYTES {
        return Err(format!("it is longer than {MAX_SECRET_BYTES} bytes"));
    }
    Ok(bytes)
}

fn expand_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path.to_owned(),
    }
}
