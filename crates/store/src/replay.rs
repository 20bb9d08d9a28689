//! Replays the log from its beginning, and tells torn writes from corruption.
//!
//! A batch is synced before the next one is written. So an unreadable range followed by a readable batch was once
//! durable and is corruption: it is reported and copied to a `damaged-*` file. An unreadable end of the last segment is
//! a torn write: it is copied too, then truncated, and the intact messages at its head are kept.

use crate::index::{Index, Location, RememberedId, Segment};
use crate::log::{SEGMENTS, io_error};
use crate::record::{self, BatchHeader, HEADER_BYTES, MAGIC, Piece, Record};
use crate::{Disk, DiskFile, StoreError, StoreOptions};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Message, RestoredMessage, Seq, Settled};
use toolbus_wal::set_aside;

/// Receives the records of the log in log order, to rebuild state from them.
pub trait Replay {
    /// A message was stored, or copied by compaction.
    fn message(&mut self, message: RestoredMessage<'_>);
    /// A message was settled.
    fn settled(&mut self, settled: &Settled);
    /// The number of delivery attempts of a message changed.
    fn attempts(&mut self, note: &AttemptsNote);
}

/// The result of replaying the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The first sequence number that was never assigned.
    pub next_seq: Seq,
    /// Number of batches in the log.
    pub batches: u64,
    /// Bytes of a torn write at the end of the log.
    pub torn_bytes: u64,
    /// Number of ranges that were corrupted after they had become durable.
    pub damaged: u64,
    /// Total bytes of the corrupt ranges.
    pub damaged_bytes: u64,
}

pub struct Replayed {
    pub index: Index,
    pub recovery: Recovery,
    pub next_number: u64,
    /// Intact messages of a torn batch, in order. They must be written again.
    pub salvaged: Vec<Message>,
}

pub fn replay(disk: &dyn Disk, options: &StoreOptions, target: &mut dyn Replay) -> Result<Replayed, StoreError> {
    let listed = SEGMENTS.list(disk);
    let segments = listed.map_err(|source| StoreError::Io { what: "list", file: "the data folder".into(), source })?;
    let last = segments.last().copied();
    let replayed =
        Replayed { index: Index::default(), recovery: Recovery::default(), next_number: 1, salvaged: Vec::new() };
    let mut reader = Reader { disk, options, target, replayed };
    for segment in segments {
        reader.segment(segment, Some(segment) == last)?;
    }
    reader.replayed.index.sort_ids(options.history_ids, options.history_age);
    Ok(reader.replayed)
}

struct Reader<'a> {
    disk: &'a dyn Disk,
    options: &'a StoreOptions,
    target: &'a mut dyn Replay,
    replayed: Replayed,
}

/// Bytes per read. A larger batch is fetched with one read.
const CHUNK: usize = 4 << 20;

impl Reader<'_> {
    fn segment(&mut self, number: u32, is_last: bool) -> Result<(), StoreError> {
        let file = self.disk.open(&SEGMENTS.name(number)).map_err(io_error("open", number))?;
        let length = file.size().map_err(io_error("get the size of", number))?;
        let segment = Segment { file: Arc::clone(&file), bytes: length, live: 0, live_bytes: 0 };
        self.replayed.index.segments.insert(number, segment);
        let mut window = Window { file: &*file, length, start: 0, bytes: Bytes::new() };
        let mut position = 0;
        while position < length {
            position = self.batch(number, is_last, &mut window, position)?;
        }
        Ok(())
    }

    /// Reads the batch at a position of a segment and returns the position to continue at.
    fn batch(&mut self, number: u32, is_last: bool, window: &mut Window<'_>, position: u64) -> Result<u64, StoreError> {
        let read_error = io_error("read", number);
        let header = window.at(position, HEADER_BYTES).map_err(&read_error)?.and_then(|bytes| self.header(&bytes));
        let end = header.map(|header| position + HEADER_BYTES as u64 + u64::from(header.body_bytes));
        let end = end.filter(|end| *end <= window.length);
        if let (Some(header), Some(end)) = (header, end) {
            let body = window.exactly(position + HEADER_BYTES as u64, end).map_err(&read_error)?;
            if self.whole_batch(header, number, position, body) {
                return Ok(end);
            }
        }
        let behind = self.next_batch(window, end.unwrap_or(position + 1)).map_err(&read_error)?;
        if is_last && behind.is_none() {
            self.torn_write(number, header, window, position)?;
            return Ok(window.length);
        }
        let until = end.or(behind).unwrap_or(window.length);
        let range = window.exactly(position, until).map_err(&read_error)?;
        self.corrupt_range(number, header, position, &range);
        Ok(until)
    }

    /// Ignores headers with the number of an earlier batch: they are stale data of a removed file.
    fn header(&self, bytes: &[u8]) -> Option<BatchHeader> {
        BatchHeader::read(self.options.checksum_key(), bytes)
            .filter(|header| header.number >= self.replayed.next_number)
    }

    /// Applies a batch if all its records are intact.
    fn whole_batch(&mut self, header: BatchHeader, segment: u32, position: u64, mut body: Bytes) -> bool {
        let mut records = Vec::with_capacity(header.records as usize);
        let mut offset = position + HEADER_BYTES as u64;
        while !body.is_empty() {
            let Some(raw) = record::split_record(&mut body) else { return false };
            let length = raw.len() as u32;
            let Some(record) = record::read_record(self.options.checksum_key(), raw) else { return false };
            records.push((record, Location { segment, offset: offset as u32, length }));
            offset += u64::from(length);
        }
        if records.len() != header.records as usize {
            return false;
        }
        self.count(header);
        records.into_iter().for_each(|(record, location)| self.apply(record, location));
        true
    }

    /// Applies the intact records of a corrupt range and copies the rest to `damaged-*` files.
    fn corrupt_range(&mut self, segment: u32, header: Option<BatchHeader>, position: u64, range: &Bytes) {
        header.into_iter().for_each(|header| self.count(header));
        let skipped = if header.is_some() { HEADER_BYTES } else { 0 };
        let body = range.slice(skipped..);
        let body_at = position + skipped as u64;
        for piece in record::pieces(self.options.checksum_key(), &body) {
            match piece {
                Piece::Whole { at, length, record } => {
                    let offset = (body_at + at as u64) as u32;
                    self.apply(record, Location { segment, offset, length: length as u32 });
                }
                Piece::Unreadable { at, length } => {
                    self.report_corruption(segment, body_at + at as u64, &body[at..at + length]);
                }
            }
        }
    }

    /// Truncates a torn write at the end of the log.
    fn torn_write(
        &mut self,
        number: u32,
        header: Option<BatchHeader>,
        window: &mut Window<'_>,
        from: u64,
    ) -> Result<(), StoreError> {
        let torn = window.exactly(from, window.length).map_err(io_error("read", number))?;
        tracing::warn!(segment = number, bytes = torn.len(), "truncated a torn write at the end of the log");
        self.replayed.recovery.torn_bytes += torn.len() as u64;
        self.copy_aside(number, from, &torn);
        self.salvage(header, torn);
        window.file.truncate(from).map_err(io_error("truncate", number))?;
        window.file.sync().map_err(io_error("sync", number))?;
        if let Some(segment) = self.replayed.index.segments.get_mut(&number) {
            segment.bytes = from;
        }
        Ok(())
    }

    /// Collects the intact messages at the head of a torn batch. They were not receipted, unless the torn write is in
    /// fact corruption of a durable batch. Records after the first unreadable one are dropped to preserve the order.
    fn salvage(&mut self, header: Option<BatchHeader>, mut torn: Bytes) {
        if header.is_none() && BatchHeader::read(self.options.checksum_key(), &torn).is_some() {
            // Not torn, but left over from a removed file: its messages may be settled.
            return;
        }
        let next_seq = header.map_or(0, |header| header.next_seq);
        self.replayed.recovery.next_seq = self.replayed.recovery.next_seq.max(next_seq);
        let mut body = torn.split_off(torn.len().min(HEADER_BYTES));
        let read = |raw| record::read_record(self.options.checksum_key(), raw);
        while let Some(Some(Record::Put(message))) = record::split_record(&mut body).map(read) {
            self.replayed.recovery.next_seq = self.replayed.recovery.next_seq.max(message.seq + 1);
            self.replayed.salvaged.push(message);
        }
    }

    fn count(&mut self, header: BatchHeader) {
        self.replayed.next_number = header.number + 1;
        self.replayed.recovery.next_seq = self.replayed.recovery.next_seq.max(header.next_seq);
        self.replayed.recovery.batches += 1;
    }

    fn apply(&mut self, record: Record, location: Location) {
        let index = &mut self.replayed.index;
        match record {
            Record::Put(message) => {
                let next_seq = &mut self.replayed.recovery.next_seq;
                *next_seq = (*next_seq).max(message.seq + 1);
                self.target.message(restored(&message));
                let name = match index.mailboxes.get_key_value(&message.mailbox) {
                    Some((name, _)) => Arc::clone(name),
                    None => Arc::clone(&message.mailbox),
                };
                index.add(&name, message.seq, location);
            }
            Record::Settled(all) => {
                for settled in all {
                    if let Some((mailbox, seq)) = &settled.stored {
                        index.remove(mailbox, *seq);
                    }
                    self.target.settled(&settled);
                    let Settled { fingerprint, content, at, .. } = settled;
                    let id = RememberedId { fingerprint, content, at, segment: location.segment };
                    index.remember_replayed(id, self.options.history_ids, self.options.history_age);
                }
            }
            Record::Attempts(all) => {
                for note in &all {
                    index.note_attempts(note);
                    self.target.attempts(note);
                }
            }
        }
    }

    /// Finds the next position with a valid batch header.
    fn next_batch(&self, window: &mut Window<'_>, from: u64) -> io::Result<Option<u64>> {
        let magic = MAGIC.to_le_bytes();
        let mut position = from;
        while let Some(chunk) = window.up_to(position, 1 << 20)? {
            for offset in positions_of(&chunk, magic) {
                let at = position + offset as u64;
                let header = window.at(at, HEADER_BYTES)?.and_then(|bytes| self.header(&bytes));
                if header.is_some_and(|h| at + (HEADER_BYTES as u64) + u64::from(h.body_bytes) <= window.length) {
                    return Ok(Some(at));
                }
            }
            // Chunks overlap by three bytes, so that a magic number on the boundary is found.
            let step = chunk.len().saturating_sub(magic.len() - 1).max(1);
            position += step as u64;
        }
        Ok(None)
    }

    fn report_corruption(&mut self, segment: u32, offset: u64, bytes: &[u8]) {
        self.replayed.recovery.damaged += 1;
        self.replayed.recovery.damaged_bytes += bytes.len() as u64;
        tracing::error!(
            segment,
            offset,
            bytes = bytes.len(),
            "the log is corrupt; the unreadable bytes are copied to a damaged-* file"
        );
        self.copy_aside(segment, offset, bytes);
    }

    fn copy_aside(&self, segment: u32, offset: u64, bytes: &[u8]) {
        // The copy is for manual inspection only, so its size is limited.
        set_aside(self.disk, segment, offset, &bytes[..bytes.len().min(16 << 20)]);
    }
}

pub(crate) fn restored(message: &Message) -> RestoredMessage<'_> {
    RestoredMessage {
        seq: message.seq,
        mailbox: &message.mailbox,
        id: &message.id,
        from: &message.from.name,
        fingerprint: message.fingerprint,
        content: message.content,
        size: message.size(),
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
    }
}

fn positions_of(haystack: &[u8], needle: [u8; 4]) -> impl Iterator<Item = usize> {
    haystack.windows(4).enumerate().filter(move |(_, window)| *window == needle).map(|(offset, _)| offset)
}

/// A sliding view of a file.
struct Window<'a> {
    file: &'a dyn DiskFile,
    length: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// Exactly `length` bytes at `position`, or `None` if the file ends before.
    fn at(&mut self, position: u64, length: usize) -> io::Result<Option<Bytes>> {
        if position + length as u64 > self.length {
            return Ok(None);
        }
        let covered = position >= self.start && position + length as u64 <= self.start + self.bytes.len() as u64;
        if !covered {
            let size = (CHUNK.max(length) as u64).min(self.length - position) as usize;
            let mut buffer = vec![0; size];
            self.file.read_at(position, &mut buffer)?;
            (self.start, self.bytes) = (position, Bytes::from(buffer));
        }
        let offset = (position - self.start) as usize;
        Ok(Some(self.bytes.slice(offset..offset + length)))
    }

    /// The bytes from `position` to `end`, which must be within the file.
    fn exactly(&mut self, position: u64, end: u64) -> io::Result<Bytes> {
        self.at(position, (end - position) as usize)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// At most `length` bytes at `position`, or `None` at the end of the file.
    fn up_to(&mut self, position: u64, length: usize) -> io::Result<Option<Bytes>> {
        if position >= self.length {
            return Ok(None);
        }
        let length = (length as u64).min(self.length - position) as usize;
        self.at(position, length)
    }
}
