//! A small file on a [`Disk`] that is replaced as a whole. Disks only append, so each content is a file of its own with a
//! number and a checksum; the highest one that is complete counts. New contents have even numbers and copies odd ones, so a
//! disk can copy a file while its content is replaced.

use crate::Disk;
use std::io;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const CHECKSUM_BYTES: usize = 8;

/// The names of all such files begin like this, so that a disk can tell them from segments.
pub const REPLACED_PREFIX: &str = "state-";

/// A file whose content is replaced atomically.
pub struct ReplacedFile {
    disk: Arc<dyn Disk>,
    name: &'static str,
    seed: u64,
}

impl ReplacedFile {
    /// The file of that name. The seed is a secret of the folder.
    pub fn new(disk: Arc<dyn Disk>, name: &'static str, seed: u64) -> Self {
        Self { disk, name, seed }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The last content, or `None` if there is none. A crash may have left a part of a later one, or earlier ones; they are
    /// removed.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut numbers = self.numbers()?;
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        for number in &numbers {
            if let Some(content) = self.read_version(*number)? {
                if numbers.len() > 1 {
                    self.replace(&content)?;
                }
                return Ok(Some(content));
            }
        }
        // The first content may be incomplete; of two, one must be complete.
        if numbers.len() > 1 { Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")) } else { Ok(None) }
    }

    /// Replaces the content durably.
    pub fn replace(&self, content: &[u8]) -> io::Result<()> {
        let numbers = self.numbers()?;
        let next = numbers.iter().max().map_or(2, |last| (last | 1) + 1);
        let file = self.disk.create(&self.file_name(next))?;
        let checksum = xxh3_64_with_seed(content, self.seed).to_le_bytes();
        file.append(&[&checksum[..], content].concat())?;
        file.sync()?;
        self.disk.sync_folder()?;
        for number in numbers {
            match self.disk.remove(&self.file_name(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let number = |name: String| {
            let version = name.strip_prefix(REPLACED_PREFIX)?.strip_prefix(self.name)?.strip_prefix('.')?;
            version.parse().ok()
        };
        Ok(self.disk.list()?.into_iter().filter_map(number).collect())
    }

    fn file_name(&self, number: u64) -> String {
        format!("{REPLACED_PREFIX}{}.{number}", self.name)
    }

    fn read_version(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let file = self.disk.open(&self.file_name(number))?;
        let size = usize::try_from(file.size()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; size];
        file.read_at(0, &mut bytes)?;
        if size < CHECKSUM_BYTES {
            return Ok(None);
        }
        let content = bytes.split_off(CHECKSUM_BYTES);
        Ok((bytes == xxh3_64_with_seed(&content, self.seed).to_le_bytes()).then_some(content))
    }
}

/// The name of a copy of such a file, or `None` for other files. The copy has the same content, and counts instead of it.
pub fn name_of_copy(name: &str) -> Option<String> {
    let (base, number) = name.strip_prefix(REPLACED_PREFIX)?.rsplit_once('.')?;
    let number: u64 = number.parse().ok()?;
    Some(format!("{REPLACED_PREFIX}{base}.{}", (number + 1) | 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_disk::{Rng, SimDisk};

    /// Replaces the content with every possible crash, and checks that it is the one before or the one after.
    #[test]
    fn a_crash_leaves_the_content_before_or_after() {
        for seed in 0..200 {
            for calls in 0..12 {
                let disk = SimDisk::default();
                let file = ReplacedFile::new(Arc::new(disk.clone()), "claims", 7);
                assert_eq!(file.read().expect("readable"), None);
                file.replace(b"one").expect("written");
                file.replace(b"two").expect("written");
                disk.stop_after(Some(calls));
                let is_replaced = file.replace(b"three").is_ok();
                disk.crash(&mut Rng::new(seed));
                let found = file.read().expect("readable").expect("there was a content");
                assert!(found == b"three" || (found == b"two" && !is_replaced), "{found:?} after {calls} calls");
                file.replace(b"four").expect("written");
                assert_eq!(file.read().expect("readable"), Some(b"four".to_vec()));
            }
        }
    }

    #[test]
    fn two_damaged_versions_are_an_error() {
        let disk = SimDisk::default();
        let file = ReplacedFile::new(Arc::new(disk.clone()), "claims", 7);
        for number in [1, 2] {
            disk.create(&file.file_name(number * 2)).and_then(|file| file.append(b"torn")).expect("written");
        }
        assert_eq!(file.read().expect_err("damaged").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_copy_never_has_the_name_of_a_new_content() {
        assert_eq!(name_of_copy("state-claims.8").as_deref(), Some("state-claims.9"));
        assert_eq!(name_of_copy("state-claims.9").as_deref(), Some("state-claims.11"));
        assert_eq!(name_of_copy("segment-9"), None);
    }
}
