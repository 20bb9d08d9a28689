//! Reads records of a log without blocking on its writers.

use crate::DiskFile;
use crate::frame::{ChecksumKey, Frame, Location};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, RwLock};

/// Reads records by their location. Clones read the same log.
#[derive(Clone)]
pub struct Reader {
    key: ChecksumKey,
    keep_removed: u32,
    files: Arc<RwLock<BTreeMap<u32, Arc<dyn DiskFile>>>>,
}

impl Reader {
    pub(crate) fn new(key: ChecksumKey, keep_removed: u32) -> Self {
        Self { key, keep_removed, files: Arc::default() }
    }

    /// The file of a segment.
    pub fn file(&self, segment: u32) -> Option<Arc<dyn DiskFile>> {
        self.files.read().expect("no code panics while holding the lock").get(&segment).cloned()
    }

    /// Reads the record at a location.
    pub fn read(&self, location: Location) -> io::Result<Frame> {
        let file = self.file(location.segment).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; location.length as usize];
        file.read_at(location.offset.into(), &mut bytes)?;
        self.decode(location, &Bytes::from(bytes)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Decodes the bytes of a location. Returns `None` if they are not exactly an intact record.
    pub fn decode(&self, location: Location, bytes: &Bytes) -> Option<Frame> {
        let frame = self.key.decode(location.segment, location.offset.into(), bytes);
        frame.filter(|frame| frame.location == location)
    }

    pub(crate) fn add(&self, number: u32, file: Arc<dyn DiskFile>) {
        self.files.write().expect("no code panics while holding the lock").insert(number, file);
    }

    pub(crate) fn retire(&self, removed: u32) {
        let mut files = self.files.write().expect("no code panics while holding the lock");
        files.retain(|number, _| number.saturating_add(self.keep_removed) > removed);
    }
}
