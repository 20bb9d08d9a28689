//! Disks for a store, batches to write to it, and a `Replay` that records its input.

use bytes::Bytes;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use toolbus_cluster::sim_log::SimLog;
use toolbus_cluster::{Follower, take_over};
use toolbus_engine::{AttemptsNote, Batch, Message, RestoredMessage, Sender, Seq, Settled, fingerprint};
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Disk, FolderDisk, LogStore, Recovery, Replay, Store, StoreOptions};
use toolbus_wal::{ChecksumKey, MemoryDisk};

pub const FIRST_SEGMENT: &str = "segment-0000000001.log";

/// A disk on which a store can be opened repeatedly, one at a time.
pub trait TestDisk {
    fn disk(&self) -> Arc<dyn Disk>;

    /// A new disk with these bytes as its first segment.
    fn holding(segment: &[u8]) -> Self
    where
        Self: Sized;

    fn open_with(&self, options: StoreOptions) -> Opened {
        let mut replayed = Replayed::default();
        let (store, recovery) = LogStore::open(self.disk(), options, &mut replayed).expect("the log opens");
        Opened { store, recovery, replayed }
    }

    fn open(&self) -> Opened {
        self.open_with(StoreOptions::default())
    }

    fn bytes_of(&self, name: &str) -> Vec<u8> {
        let file = self.disk().open(name).unwrap();
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        let mut names = self.disk().list().unwrap();
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        names
    }
}

pub struct Opened {
    pub store: LogStore,
    pub recovery: Recovery,
    pub replayed: Replayed,
}

impl TestDisk for SimDisk {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    fn holding(segment: &[u8]) -> Self {
        let disk = Self::default();
        disk.create(FIRST_SEGMENT).unwrap().append(segment).unwrap();
        disk
    }
}

/// A temporary folder, removed at the end of the test.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn first_segment(&self) -> PathBuf {
        self.0.path().join(FIRST_SEGMENT)
    }
}

impl TestDisk for Folder {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(FolderDisk::open(self.0.path()).expect("the folder is free").0)
    }

    fn holding(segment: &[u8]) -> Self {
        let folder = Self::new();
        // Creates the folder's identity file.
        drop(folder.disk());
        fs::write(folder.first_segment(), segment).unwrap();
        folder
    }
}

/// A replicated log. Each opening is a takeover by another broker, which has no local files.
pub struct Replicated {
    log: SimLog,
    epoch: Cell<u64>,
}

impl Replicated {
    pub fn new() -> Self {
        Self { log: SimLog::new(0), epoch: Cell::new(0) }
    }
}

impl TestDisk for Replicated {
    fn disk(&self) -> Arc<dyn Disk> {
        self.epoch.update(|epoch| epoch + 1);
        let follower = Follower::new(Arc::new(MemoryDisk::default()), ChecksumKey(0));
        Arc::new(take_over(self.log.of_broker(0), follower, self.epoch.get()).expect("the log has no faults"))
    }

    fn holding(segment: &[u8]) -> Self {
        let replicated = Self::new();
        let file = replicated.disk().create(FIRST_SEGMENT).unwrap();
        file.append(segment).unwrap();
        file.sync().unwrap();
        replicated
    }
}

/// The input of a replay, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub messages: Vec<(String, Seq, String)>,
    pub settled: Vec<Settled>,
    pub attempts: Vec<AttemptsNote>,
}

impl Replayed {
    pub fn seqs(&self) -> Vec<Seq> {
        self.messages.iter().map(|(_, seq, _)| *seq).collect()
    }
}

impl Replay for Replayed {
    fn message(&mut self, message: RestoredMessage<'_>) {
        self.messages.push((message.mailbox.to_owned(), message.seq, message.id.to_owned()));
    }
    fn settled(&mut self, settled: &Settled) {
        self.settled.push(settled.clone());
    }
    fn attempts(&mut self, note: &AttemptsNote) {
        self.attempts.push(note.clone());
    }
}

pub fn id_of(seq: Seq) -> String {
    format!("id-{seq}")
}

pub fn message_of(mailbox: &str, seq: Seq, bytes: usize) -> Arc<Message> {
    let id = id_of(seq);
    Arc::new(Message {
        seq,
        mailbox: mailbox.into(),
        from: Arc::new(Sender { name: "alice".into(), role: seq.is_multiple_of(2).then(|| "host".into()) }),
        fingerprint: fingerprint(0, mailbox, &id),
        id: id.into(),
        correlation_id: seq.is_multiple_of(3).then(|| "question".into()),
        sealed: Bytes::from(vec![seq as u8; bytes]),
        content: seq * 7,
        accepted_at: 1_000 + seq,
        expires_at: seq.is_multiple_of(2).then_some(9_000),
    })
}

pub fn message(mailbox: &str, seq: Seq) -> Arc<Message> {
    message_of(mailbox, seq, 40)
}

pub fn batch(puts: Vec<Arc<Message>>) -> Batch {
    let next_seq = puts.last().map_or(0, |message| message.seq + 1);
    Batch { next_seq, puts, ..Batch::default() }
}

/// A batch of messages to bob with bodies of 40 bytes.
pub fn puts(seqs: impl IntoIterator<Item = Seq>) -> Batch {
    batch(seqs.into_iter().map(|seq| message("bob", seq)).collect())
}

pub fn settled(mailbox: &str, seq: Seq) -> Settled {
    let stored = Some((mailbox.into(), seq));
    Settled { fingerprint: fingerprint(0, mailbox, &id_of(seq)), content: seq * 7, size: 0, at: 2_000, stored }
}

pub fn settles(seqs: impl IntoIterator<Item = Seq>) -> Batch {
    Batch { settled: seqs.into_iter().map(|seq| settled("bob", seq)).collect(), ..Batch::default() }
}

pub fn write(store: &impl Store, batch: &Batch) {
    store.write(batch).expect("the disk has room");
    store.sync().expect("the disk works");
}

/// The sequence numbers of bob's pending messages.
pub fn pending_of_bob(store: &impl Store) -> Vec<Seq> {
    let page = store.read("bob", 0, usize::MAX, u64::MAX).unwrap();
    page.messages.iter().map(|message| message.seq).collect()
}
