//! A disk whose syncs can be blocked, and whose writes and syncs can be made to fail.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use toolbus_wal::{Disk, DiskFile};

#[derive(Clone)]
pub struct GatedDisk {
    inner: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    blocked: bool,
    failing: bool,
    waiting: usize,
    writes: Vec<Vec<u8>>,
}

impl GatedDisk {
    pub fn new(inner: Arc<dyn Disk>) -> Self {
        Self { inner, gate: Arc::default() }
    }

    pub fn block_syncs(&self) {
        self.lock().blocked = true;
    }

    pub fn unblock_syncs(&self) {
        self.lock().blocked = false;
        self.gate.changed.notify_all();
    }

    pub fn fail(&self) {
        self.lock().failing = true;
    }

    /// True while a sync is blocked.
    pub fn has_blocked_sync(&self) -> bool {
        self.lock().waiting > 0
    }

    /// The largest number of occurrences of a text in one write.
    pub fn most_in_one_write(&self, text: &[u8]) -> usize {
        let count = |write: &Vec<u8>| write.windows(text.len()).filter(|part| *part == text).count();
        self.lock().writes.iter().map(count).max().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.gate.state.lock().expect("no panic")
    }

    fn file(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(GatedFile { inner, gate: Arc::clone(&self.gate) })
    }
}

struct GatedFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl Disk for GatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.create(name).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open(name).map(|file| self.file(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.inner.sync_folder()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

impl DiskFile for GatedFile {
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.gate.state.lock().expect("no panic");
        state.writes.push(bytes.to_owned());
        if state.failing { Err(failure()) } else { self.inner.append(bytes) }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.gate.state.lock().expect("no panic");
        state.waiting += 1;
        while state.blocked {
            state = self.gate.changed.wait(state).expect("no panic");
        }
        state.waiting -= 1;
        if state.failing { Err(failure()) } else { self.inner.sync() }
    }
}

fn failure() -> io::Error {
    io::Error::other("simulated disk failure")
}
