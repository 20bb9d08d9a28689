//! A disk whose truth is a partition's replicated log. Written bytes go to the mirror at once and into the log with the next
//! sync, packed into as few messages as possible; reads are served by the mirror.

use crate::follower::FollowedFile;
use crate::planted::{self, PlantedBug};
use crate::writer::{WriteError, Writer};
use crate::{Closed, Entry, Follower, LogError};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_wal::{Disk, DiskFile, REPLACED_PREFIX, name_of_copy};

/// Files with this prefix are for manual inspection and stay on the local disk.
const LOCAL_PREFIX: &str = "damaged-";

/// The disk of a partition that this broker owns.
pub struct StreamDisk(Arc<Shared>);

struct Shared {
    mirror: Arc<dyn Disk>,
    /// Locked during an append to the log, which can take seconds. Only the writing thread of the store uses it; reads go to
    /// the mirror.
    state: Mutex<State>,
    planted: Option<PlantedBug>,
}

struct State {
    writer: Writer,
    files: BTreeMap<Arc<str>, FollowedFile>,
    /// Changes of the mirror that are not in the log, in order.
    pending: VecDeque<Pending>,
    /// Everything before it was purged.
    purged: u64,
    /// How many bytes the log could take when it was last asked, less those that were written since. A write that finds no
    /// room can be refused; a sync that finds none would be a failure.
    room: u64,
}

/// A change that is not in the log.
enum Pending {
    Append { file: Arc<str>, bytes: BytesMut },
    Truncate { file: Arc<str>, length: u64 },
}

impl StreamDisk {
    /// The disk after the owner of `writer` has appended its epoch.
    pub(crate) fn new(writer: Writer, follower: Follower) -> Self {
        let planted = follower.planted();
        let Follower { mirror, files, .. } = follower;
        let room = writer.log().free_bytes().unwrap_or(u64::MAX);
        let state = Mutex::new(State { writer, files, pending: VecDeque::new(), purged: 0, room });
        Self(Arc::new(Shared { mirror, state, planted }))
    }

    fn file(&self, name: &str, mirror: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        match name.starts_with(LOCAL_PREFIX) {
            true => mirror,
            false => Arc::new(StreamFile { shared: Arc::clone(&self.0), name: name.into(), mirror }),
        }
    }
}

impl Disk for StreamDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.mirror.list()
    }

    /// The log knows a file once it has content. An empty one need not survive.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mirror = self.0.mirror.create(name)?;
        if planted::has(self.0.planted, PlantedBug::TrimBeforeCopy) {
            let mut state = self.0.state();
            let second = state.files.values().nth(1).map(|file| file.first);
            second.map_or(Ok(()), |first| state.purge_below(first))?;
        }
        Ok(self.file(name, mirror))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.0.mirror.open(name)?))
    }

    /// The log is purged up to the oldest file that is left, so it loses only a prefix: settlements are never lost before
    /// the messages that they settle.
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.mirror.remove(name)?;
        let mut state = self.0.state();
        if state.files.remove(name).is_none() {
            return Ok(());
        }
        let copied = self.0.copy_old_state(&mut state)?;
        // Copies of the records that are still needed must be in the log.
        state.flush()?;
        for name in copied {
            self.0.mirror.remove(&name)?;
            state.files.remove(&*name);
        }
        let oldest = state.files.values().map(|file| file.first).min();
        oldest.map_or(Ok(()), |first| state.purge_below(first))
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let mut state = self.0.state();
        state.room = state.writer.log().free_bytes().map_err(log_error)?.saturating_sub(state.pending_bytes());
        Ok(state.room.min(self.0.mirror.free_bytes()?))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Copies the state files that are older than all segments: they would keep the log from being purged. Returns the names
    /// of the originals, to be removed once the copies are in the log.
    fn copy_old_state(&self, state: &mut State) -> io::Result<Vec<Arc<str>>> {
        let is_segment = |name: &str| !name.starts_with(REPLACED_PREFIX);
        let segments = state.files.iter().filter(|(name, _)| is_segment(name)).map(|(_, file)| file.first);
        let Some(oldest) = segments.min() else { return Ok(Vec::new()) };
        let is_old = |(name, file): (&Arc<str>, &FollowedFile)| {
            (file.first < oldest).then(|| Some((Arc::clone(name), name_of_copy(name)?))).flatten()
        };
        let old: Vec<(Arc<str>, String)> = state.files.iter().filter_map(is_old).collect();
        for (name, copy) in &old {
            let mut content = vec![0; usize::try_from(self.mirror.open(name)?.size()?).map_err(io::Error::other)?];
            self.mirror.open(name)?.read_at(0, &mut content)?;
            self.mirror.create(copy)?.append(&content)?;
            state.append(&copy.as_str().into(), &content);
        }
        Ok(old.into_iter().map(|(name, _)| name).collect())
    }
}

impl State {
    fn pending_bytes(&self) -> u64 {
        let bytes_of =
            |change: &Pending| if let Pending::Append { bytes, .. } = change { bytes.len() as u64 } else { 0 };
        self.pending.iter().map(bytes_of).sum()
    }

    fn append(&mut self, name: &Arc<str>, bytes: &[u8]) {
        self.room = self.room.saturating_sub(bytes.len() as u64);
        match self.pending.back_mut() {
            Some(Pending::Append { file, bytes: waiting }) if file == name => waiting.extend_from_slice(bytes),
            _ => self.pending.push_back(Pending::Append { file: Arc::clone(name), bytes: bytes.into() }),
        }
    }

    fn truncate(&mut self, name: &Arc<str>, length: u64) -> io::Result<()> {
        let mut end = self.files.get(name).map_or(0, |file| file.length);
        for change in &self.pending {
            match change {
                Pending::Append { file, bytes } if file == name => end += bytes.len() as u64,
                Pending::Truncate { file, length } if file == name => end = *length,
                _ => {}
            }
        }
        match length {
            length if length > end => return Err(io::ErrorKind::InvalidInput.into()),
            length if length == end => {}
            length => self.pending.push_back(Pending::Truncate { file: Arc::clone(name), length }),
        }
        Ok(())
    }

    /// Appends all pending changes to the log, in order.
    fn flush(&mut self) -> io::Result<()> {
        while let Some((entry, rest)) = self.next_entry() {
            self.writer.more_follow = rest.is_some() || self.pending.len() > 1;
            let sequence = self.writer.append(&entry).map_err(write_error)?;
            match entry {
                Entry::Append { file, bytes, .. } => {
                    let file = self.files.entry(file).or_insert(FollowedFile { first: sequence, length: 0 });
                    file.length += bytes.len() as u64;
                }
                Entry::Truncate { file, length } => {
                    self.files.entry(file).and_modify(|file| file.length = length);
                }
                Entry::Epoch => {}
            }
            match (rest, self.pending.front_mut()) {
                (Some(taken), Some(Pending::Append { bytes, .. })) => bytes.advance(taken),
                _ => drop(self.pending.pop_front()),
            }
        }
        Ok(())
    }

    /// The entry of the first pending change, or of as many of its bytes as one message can take. Then it has their number,
    /// too.
    fn next_entry(&self) -> Option<(Entry, Option<usize>)> {
        match self.pending.front()? {
            Pending::Truncate { file, length } => {
                Some((Entry::Truncate { file: Arc::clone(file), length: *length }, None))
            }
            Pending::Append { file, bytes } => {
                let room = self.writer.log().max_message().saturating_sub(Entry::overhead(file)).max(1);
                let offset = self.files.get(file).map_or(0, |file| file.length);
                let chunk = Bytes::copy_from_slice(&bytes[..bytes.len().min(room)]);
                let rest = (chunk.len() < bytes.len()).then_some(chunk.len());
                Some((Entry::Append { file: Arc::clone(file), offset, bytes: chunk }, rest))
            }
        }
    }

    fn purge_below(&mut self, sequence: u64) -> io::Result<()> {
        if sequence > self.purged {
            self.writer.log().purge_below(sequence).map_err(log_error)?;
            self.purged = sequence;
        }
        Ok(())
    }
}

struct StreamFile {
    shared: Arc<Shared>,
    name: Arc<str>,
    mirror: Arc<dyn DiskFile>,
}

impl DiskFile for StreamFile {
    fn size(&self) -> io::Result<u64> {
        self.mirror.size()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state();
        if state.room < bytes.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.mirror.append(bytes)?;
        state.append(&self.name, bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.mirror.read_at(offset, buffer)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.mirror.truncate(length)?;
        self.shared.state().truncate(&self.name, length)
    }

    /// Appends everything that is pending to the log, also of other files: the log has one order.
    fn sync(&self) -> io::Result<()> {
        self.shared.state().flush()
    }
}

fn write_error(error: WriteError) -> io::Error {
    match error {
        WriteError::Full => io::ErrorKind::StorageFull.into(),
        WriteError::Closed(Closed::Fenced) => io::Error::new(toolbus_wal::FENCED, Closed::Fenced),
        WriteError::Closed(Closed::Unresolved) => io::Error::new(io::ErrorKind::TimedOut, Closed::Unresolved),
    }
}

fn log_error(error: LogError) -> io::Error {
    io::Error::other(error)
}
