//! A disk whose syncs wait until they are let through, and that can break.

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
    shut: bool,
    broken: bool,
    waiting: usize,
}

impl GatedDisk {
    pub fn new(inner: Arc<dyn Disk>) -> Self {
        Self { inner, gate: Arc::default() }
    }

    pub fn shut(&self) {
        self.lock().shut = true;
    }

    pub fn open_gate(&self) {
        self.lock().shut = false;
        self.gate.changed.notify_all();
    }

    pub fn break_down(&self) {
        self.lock().broken = true;
    }

    /// Whether somebody waits for a sync.
    pub fn is_waited_for(&self) -> bool {
        self.lock().waiting > 0
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
        if self.gate.state.lock().expect("no panic").broken { Err(broken()) } else { self.inner.append(bytes) }
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
        while state.shut {
            state = self.gate.changed.wait(state).expect("no panic");
        }
        state.waiting -= 1;
        if state.broken { Err(broken()) } else { self.inner.sync() }
    }
}

fn broken() -> io::Error {
    io::Error::other("the disk broke")
}
