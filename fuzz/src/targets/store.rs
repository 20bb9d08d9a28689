//! The message log: records survive being written, and a damaged log gives back only records that were written, in their
//! order, and the same ones when it is opened again.

use crate::input::Input;
use crate::memory::bounded;
use crate::targets::damage::{check_some_of, damage, secret};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Batch, Fingerprint, Message, RestoredMessage, Sender, Settled};
use toolbus_store::fuzzing::reencode;
use toolbus_store::{Disk, LogStore, Replay, Store, StoreOptions};
use toolbus_wal::MemoryDisk;

/// Batches that are written before the log is damaged.
const MAX_BATCHES: u64 = 6;

pub fn store(data: &[u8]) {
    let mut input = Input(data);
    let record = input.line();
    if let Some((kind, payload)) = record.split_first() {
        record_is_stable(*kind, payload);
    }
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let options = StoreOptions { segment_bytes: 512, checksum_seed: secret(data), ..StoreOptions::default() };
    let written = write(&disk, &options, &mut input);
    let read = |disk: &Arc<dyn Disk>| {
        let mut replayed = Replayed::default();
        let opened = LogStore::open(Arc::clone(disk), options.clone(), &mut replayed);
        drop(opened.expect("a damaged log can be opened"));
        replayed
    };
    assert_eq!(read(&disk), written, "an undamaged log gives back all records");
    damage(&*disk, &mut input);
    let after = read(&disk);
    check_some_of(&written.messages, &after.messages);
    check_some_of(&written.settled, &after.settled);
    check_some_of(&written.attempts, &after.attempts);
    assert_eq!(read(&disk), after, "a repaired log gives back the same records");
}

fn record_is_stable(kind: u8, payload: &[u8]) {
    let Some((kind, once)) = bounded(payload, 64, || reencode(kind, payload)) else { return };
    if !once.is_empty() {
        assert_eq!(reencode(kind, &once), Some((kind, once)), "an encoded record is decoded");
    }
}

/// The records of a log, in the order of each kind.
#[derive(Debug, Default, PartialEq)]
struct Replayed {
    messages: Vec<String>,
    settled: Vec<String>,
    attempts: Vec<String>,
}

impl Replay for Replayed {
    fn message(&mut self, message: RestoredMessage<'_>) {
        let RestoredMessage { seq, mailbox, id, from, fingerprint, content, accepted_at, expires_at, size } = message;
        let numbers = (seq, fingerprint.0, content, accepted_at, expires_at, size);
        self.messages.push(format!("{mailbox} {id} {from} {numbers:?}"));
    }

    fn settled(&mut self, settled: &Settled) {
        self.settled.push(format!("{:?}", Settled { size: 0, ..settled.clone() }));
    }

    fn attempts(&mut self, note: &AttemptsNote) {
        self.attempts.push(format!("{note:?}"));
    }
}

fn write(disk: &Arc<dyn Disk>, options: &StoreOptions, input: &mut Input<'_>) -> Replayed {
    let mut written = Replayed::default();
    let (log, _) = LogStore::open(Arc::clone(disk), options.clone(), &mut written).expect("an empty disk");
    for number in 1..=u64::from(input.byte()) % (MAX_BATCHES + 1) {
        let mut batch = Batch { number, next_seq: number + 1, ..Batch::default() };
        let choice = input.byte();
        let name: Arc<str> = ["inbox", "inbox#dead", "ä"][usize::from(choice % 3)].into();
        let length = input.below(128).min(input.0.len());
        let (body, rest) = input.0.split_at(length);
        input.0 = rest;
        let message = Message {
            seq: number,
            mailbox: Arc::clone(&name),
            from: Arc::new(Sender { name: "sender".into(), role: (choice & 8 != 0).then(|| "role".into()) }),
            id: format!("id-{number}").into(),
            correlation_id: (choice & 16 != 0).then(|| "call".into()),
            sealed: Bytes::copy_from_slice(body),
            fingerprint: Fingerprint([number, choice.into()]),
            content: choice.into(),
            accepted_at: 5,
            expires_at: (choice & 32 != 0).then_some(9),
        };
        if choice & 64 != 0 {
            let (fingerprint, content) = (message.fingerprint, message.content);
            batch.settled.push(Settled { fingerprint, content, size: 0, at: 6, stored: Some((name, number)) });
            batch.settled.iter().for_each(|settled| written.settled(settled));
        } else {
            let size = message.size();
            let Message { seq, fingerprint, content, accepted_at, expires_at, .. } = message;
            let (mailbox, id, from) = (&*message.mailbox, &*message.id, &*message.from.name);
            written.message(RestoredMessage {
                seq,
                mailbox,
                id,
                from,
                fingerprint,
                content,
                size,
                accepted_at,
                expires_at,
            });
            batch.puts.push(Arc::new(message));
        }
        if choice & 128 != 0 {
            batch.attempts.push(AttemptsNote { mailbox: "inbox".into(), seq: number, attempts: 2 });
            batch.attempts.iter().for_each(|note| written.attempts(note));
        }
        log.write(&batch).and_then(|()| log.sync()).expect("written");
    }
    written
}
