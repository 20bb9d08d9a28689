//! The key file with which a data folder's broker proves its identity to commands that found a token in the folder.

use crate::RegistryError;
use std::io;
use std::path::Path;
use toolbus_base::{hex, read_private_text, replace_file};
use toolbus_protocol::BrokerKey;

/// Name of the key file in the data folder, readable by its owner only.
pub const BROKER_KEY_FILE: &str = "broker.key";

/// Returns the folder's key; creates one if the file is missing or invalid.
pub fn ensure_broker_key(data: &Path) -> Result<BrokerKey, RegistryError> {
    if let Some(key) = read_broker_key(data)? {
        return Ok(key);
    }
    let mut bytes = [0; BrokerKey::LENGTH];
    getrandom::fill(&mut bytes).map_err(|error| RegistryError::Random(error.to_string()))?;
    let path = data.join(BROKER_KEY_FILE);
    replace_file(&path, format!("{}\n", hex(&bytes)).as_bytes())
        .map_err(|source| RegistryError::Write { path, source })?;
    Ok(BrokerKey::new(&bytes))
}

/// Returns the folder's key, or `None` if the file is missing or invalid.
pub fn read_broker_key(data: &Path) -> Result<Option<BrokerKey>, RegistryError> {
    let path = data.join(BROKER_KEY_FILE);
    match read_private_text(&path) {
        Ok(text) => Ok(BrokerKey::from_hex(text.trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(source) => Err(RegistryError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_key_is_created_once_with_private_mode_and_replaced_if_invalid() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = "127.0.0.1:1".parse().expect("an address");
        assert!(read_broker_key(folder.path()).expect("readable").is_none());
        let proof = ensure_broker_key(folder.path()).expect("created").prove(b"c", address);
        assert_eq!(ensure_broker_key(folder.path()).expect("kept").prove(b"c", address), proof);
        let read = read_broker_key(folder.path()).expect("readable").expect("a key");
        assert!(read.verify(b"c", address, &proof));
        let file = folder.path().join(BROKER_KEY_FILE);
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
        for invalid in ["", "00", &"zz".repeat(32), &"é".repeat(32)] {
            fs::write(&file, invalid).expect("writable");
            assert!(read_broker_key(folder.path()).expect("readable").is_none(), "{invalid}");
        }
        assert_ne!(ensure_broker_key(folder.path()).expect("created again").prove(b"c", address), proof);
    }
}
