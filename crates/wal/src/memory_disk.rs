//! A disk in memory, for a log that need not outlive its process.

use crate::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Files in memory; a sync has nothing to do.
#[derive(Default)]
pub struct MemoryDisk(Mutex<BTreeMap<String, Arc<MemoryFile>>>);

#[derive(Default)]
struct MemoryFile(Mutex<Vec<u8>>);

impl MemoryFile {
    fn with<T>(&self, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl MemoryDisk {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Arc<MemoryFile>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.with(|files| files.keys().cloned().collect()))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::<MemoryFile>::default();
        self.with(|files| files.insert(name.to_owned(), Arc::clone(&file)));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.with(|files| files.get(name).cloned()).ok_or(io::ErrorKind::NotFound)?;
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|files| files.remove(name)).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.with(|data| data.len() as u64))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.with(|data| data.extend_from_slice(bytes));
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.with(|data| {
            let wanted = usize::try_from(offset).ok().and_then(|from| data.get(from..)?.get(..buffer.len()));
            buffer.copy_from_slice(wanted.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.with(|data| data.truncate(usize::try_from(length).unwrap_or(usize::MAX)));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
