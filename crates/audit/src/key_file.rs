//! The file of the sealing key. It has two slots: a new key is written to the free one and synced, then the old one is
//! overwritten. A crash leaves at least one valid key, no temporary file keeps an old one, and a full disk does not
//! matter, because the file never grows.

use crate::canonical::sha256_hex;
use crate::error::AuditError;
use crate::files;
use crate::seal::SealingKey;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use toolbus_base::{from_hex, hex, open_private, replace_file};
use zeroize::{Zeroize, Zeroizing};

pub const KEY_FILE: &str = "seal.key";

/// In separate blocks, so that a torn write damages one slot only.
const SLOT_OFFSETS: [u64; 2] = [0, 4096];
/// Index, log, key and checksum, each followed by a space or the line end.
const SLOT_BYTES: usize = 20 + 1 + 32 + 1 + 64 + 1 + 64 + 1;

/// The open file, and which slot has the key.
pub struct KeyFile {
    file: File,
    slot: usize,
}

impl KeyFile {
    /// Creates the file with the key of the first seal.
    pub fn create(folder: &Path, key: &SealingKey) -> Result<(), AuditError> {
        let path = folder.join(KEY_FILE);
        if exists(folder) {
            return Err(AuditError::Sealed { folder: folder.to_owned() });
        }
        let mut bytes = Zeroizing::new(vec![0; SLOT_OFFSETS[1] as usize + SLOT_BYTES]);
        bytes[..SLOT_BYTES].copy_from_slice(encode(key).as_bytes());
        // Its temporary file may survive a crash, but then the key was never used.
        replace_file(&path, &bytes).map_err(AuditError::io("write", path))
    }

    /// Opens the file and erases an old key that a crash left. Returns `None` if there is no file.
    pub fn open(folder: &Path) -> Result<Option<(Self, SealingKey)>, AuditError> {
        let path = folder.join(KEY_FILE);
        let file = match open_private(&path, OpenOptions::new().read(true).write(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(AuditError::io("open", path)(error)),
        };
        let (slot, key) = newest(&file).map_err(|what| AuditError::damaged(KEY_FILE, what))?;
        let file = Self { file, slot };
        file.erase_other().map_err(AuditError::io("write", path))?;
        Ok(Some((file, key)))
    }

    /// A file that can't be written, for tests.
    #[cfg(test)]
    pub fn read_only(folder: &Path) -> Self {
        Self { file: File::open(folder.join(KEY_FILE)).expect("a file"), slot: 0 }
    }

    /// Replaces the key durably, and erases the previous one.
    pub fn replace(&mut self, key: &SealingKey) -> io::Result<()> {
        self.write_free_slot(key)?;
        self.erase_other()
    }

    pub(crate) fn write_free_slot(&mut self, key: &SealingKey) -> io::Result<()> {
        let free = 1 - self.slot;
        self.file.write_all_at(encode(key).as_bytes(), SLOT_OFFSETS[free])?;
        self.file.sync_data()?;
        self.slot = free;
        Ok(())
    }

    fn erase_other(&self) -> io::Result<()> {
        self.file.write_all_at(&[0; SLOT_BYTES], SLOT_OFFSETS[1 - self.slot])?;
        self.file.sync_data()
    }
}

pub fn exists(folder: &Path) -> bool {
    folder.join(KEY_FILE).exists()
}

/// Reads the key without a change to the file. The error is a description.
pub fn read(folder: &Path) -> Result<Option<SealingKey>, String> {
    match files::open(&folder.join(KEY_FILE)) {
        Ok(file) => newest(&file).map(|(_, key)| Some(key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("it can't be read: {error}")),
    }
}

/// The slot with the latest valid key.
fn newest(file: &File) -> Result<(usize, SealingKey), String> {
    let slots = SLOT_OFFSETS.iter().enumerate().filter_map(|(slot, offset)| Some((slot, read_slot(file, *offset)?)));
    slots.max_by_key(|(_, key)| key.index).ok_or_else(|| "it has no valid key".to_owned())
}

fn read_slot(file: &File, offset: u64) -> Option<SealingKey> {
    let mut bytes = Zeroizing::new([0; SLOT_BYTES]);
    file.read_exact_at(&mut *bytes, offset).ok()?;
    let (content, check) = std::str::from_utf8(&*bytes).ok()?.strip_suffix('\n')?.rsplit_once(' ')?;
    if sha256_hex(content.as_bytes()) != check {
        return None;
    }
    let mut fields = content.split(' ');
    let (index, log) = (fields.next()?.parse().ok()?, fields.next()?.to_owned());
    Some(SealingKey { log, index, key: Zeroizing::new(from_hex(fields.next()?)?) })
}

fn encode(key: &SealingKey) -> Zeroizing<String> {
    let mut digits = hex(&*key.key);
    let content = Zeroizing::new(format!("{:020} {} {digits}", key.index, key.log));
    digits.zeroize();
    Zeroizing::new(format!("{} {}\n", *content, sha256_hex(content.as_bytes())))
}
