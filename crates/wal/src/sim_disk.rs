//! A disk in memory that behaves as badly as real ones may: what was not synced can be lost, kept or torn by a crash,
//! syncs can fail, space can run out, and bits can rot. All of it follows from the seed.

use crate::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// A small generator of numbers, so that the same seed gives the same faults everywhere.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator of that seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give the same numbers a few draws apart.
        Self(Self(seed).next_u64())
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// True in that many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Default, Clone)]
struct FileState {
    data: Vec<u8>,
    synced: Vec<u8>,
    /// Whether the name survives a crash.
    name_synced: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, FileState>,
    /// Files that were removed without a sync of the folder since: a crash may bring them back.
    removed: BTreeMap<String, FileState>,
    capacity: Option<u64>,
    fail_syncs: bool,
    /// Calls until everything fails, as if the machine had stopped in the middle.
    calls_left: Option<u64>,
    calls: u64,
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        self.calls += 1;
        match &mut self.calls_left {
            Some(0) => Err(io::Error::other("the simulated machine has stopped")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| file.data.len() as u64).sum()
    }

    fn file(&mut self, name: &str) -> io::Result<&mut FileState> {
        self.files.get_mut(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The disk. Clones share their files.
#[derive(Debug, Default, Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the simulation has one thread")
    }

    /// Limits the bytes of all files together.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Makes every sync fail.
    pub fn fail_syncs(&self, fail: bool) {
        self.state().fail_syncs = fail;
    }

    /// Lets the next `calls` calls pass and everything after them fail.
    pub fn stop_after(&self, calls: Option<u64>) {
        self.state().calls_left = calls;
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The machine loses power: only what was synced is certain to be there again.
    pub fn crash(&self, rng: &mut Rng) {
        let mut state = self.state();
        state.calls_left = None;
        state.fail_syncs = false;
        for (name, file) in std::mem::take(&mut state.removed) {
            if rng.chance(50) {
                state.files.entry(name).or_insert(file);
            }
        }
        state.files.retain(|_, file| file.name_synced || rng.chance(50));
        for file in state.files.values_mut() {
            tear(file, rng);
            file.synced = file.data.clone();
            file.name_synced = true;
        }
    }

    /// Flips one bit somewhere in a file whose name starts like this. Returns whether there was one to flip.
    pub fn rot(&self, prefix: &str, rng: &mut Rng) -> bool {
        let mut state = self.state();
        let mut candidates: Vec<_> =
            state.files.iter_mut().filter(|(name, file)| name.starts_with(prefix) && !file.data.is_empty()).collect();
        if candidates.is_empty() {
            return false;
        }
        let chosen = rng.below(candidates.len() as u64) as usize;
        let file = &mut candidates[chosen].1;
        let position = rng.below(file.data.len() as u64) as usize;
        file.data[position] ^= 1 << rng.below(8);
        file.synced = file.data.clone();
        true
    }

    /// Flips one bit of a file, now and after a crash.
    pub fn flip(&self, name: &str, position: usize, bit: u8) {
        let mut state = self.state();
        let file = state.files.get_mut(name).expect("the file to flip a bit of exists");
        file.data[position] ^= 1 << bit;
        file.synced = file.data.clone();
    }

    /// Another disk with the same contents.
    pub fn fork(&self) -> Self {
        let state = self.state();
        let forked = State { files: state.files.clone(), removed: state.removed.clone(), ..State::default() };
        Self(Arc::new(Mutex::new(forked)))
    }

    /// Another disk with only what is certain to survive a crash now.
    pub fn fork_synced(&self) -> Self {
        let state = self.state();
        let synced = state.files.iter().filter(|(_, file)| file.name_synced);
        let files = synced.map(|(name, file)| (name.clone(), FileState { data: file.synced.clone(), ..file.clone() }));
        Self(Arc::new(Mutex::new(State { files: files.collect(), ..State::default() })))
    }

    /// The files with their sizes.
    pub fn files(&self) -> Vec<(String, usize)> {
        self.state().files.iter().map(|(name, file)| (name.clone(), file.data.len())).collect()
    }

    fn handle(&self, name: &str) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), name: name.to_owned() })
    }
}

/// What a crash makes of bytes that were written but not synced: all, none, a part, or a part with holes.
fn tear(file: &mut FileState, rng: &mut Rng) {
    let safe = file.synced.len();
    if file.data.len() <= safe {
        // Cut back but not synced: the old length may come back.
        if rng.chance(50) {
            file.data = file.synced.clone();
        }
        return;
    }
    match rng.below(4) {
        0 => file.data.truncate(safe),
        1 => {}
        kind => {
            let unsynced = (file.data.len() - safe) as u64;
            file.data.truncate(safe + rng.below(unsynced + 1) as usize);
            if kind == 3 {
                for sector in file.data[safe..].chunks_mut(512) {
                    if rng.chance(30) {
                        sector.fill(0);
                    }
                }
            }
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.step()?;
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), FileState::default());
        Ok(self.handle(name))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.state().file(name)?;
        Ok(self.handle(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let file = state.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.removed.insert(name.to_owned(), file);
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        if state.fail_syncs {
            return Err(io::Error::other("simulated sync failure"));
        }
        state.removed.clear();
        state.files.values_mut().for_each(|file| file.name_synced = true);
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used())))
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.state().file(&self.name)?.data.len() as u64)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        if let Err(stopped) = state.step() {
            // A write that is interrupted has often begun.
            let half = bytes.len() / 2;
            state.file(&self.name)?.data.extend_from_slice(&bytes[..half]);
            return Err(stopped);
        }
        let room = state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used()));
        let fits = (bytes.len() as u64).min(room) as usize;
        state.file(&self.name)?.data.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        // An open file can be read after it was removed.
        let removed = state.removed.get(&self.name).cloned();
        let data = match state.files.get(&self.name) {
            Some(file) => &file.data,
            None => &removed.as_ref().ok_or(io::ErrorKind::NotFound)?.data,
        };
        let offset = offset as usize;
        let wanted = data.get(offset..offset + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(wanted);
        state.calls += 1;
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.file(&self.name)?.data.truncate(length as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        if state.fail_syncs {
            return Err(io::Error::other("simulated sync failure"));
        }
        let file = state.file(&self.name)?;
        file.synced = file.data.clone();
        Ok(())
    }
}
