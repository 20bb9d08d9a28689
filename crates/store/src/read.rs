//! Reads messages back from the log. Records that are close to each other are fetched with one read.

use crate::index::Slot;
use crate::log::io_error;
use crate::record::{self, Record};
use crate::{DiskFile, LogStore, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_engine::{Page, Seq};
use toolbus_wal::{Location, set_aside};

/// Largest gap in bytes between two records that are fetched with one read.
const MAX_GAP: u32 = 4 << 10;
/// Maximum bytes of one read of several records.
const MAX_RUN: u32 = 256 << 10;

impl LogStore {
    pub(crate) fn read_page(
        &self,
        mailbox: &str,
        from: Seq,
        max_messages: usize,
        max_bytes: u64,
    ) -> Result<Page, StoreError> {
        let (runs, corrupt) = self.plan(mailbox, from, max_messages, max_bytes);
        let mut page = Page { from, damaged: corrupt, ..Page::default() };
        for run in runs {
            let bytes = run.read()?;
            for slot in &run.slots {
                let offset = (slot.location.offset - run.start) as usize;
                let raw = bytes.slice(offset..offset + slot.location.length as usize);
                match self.reader.decode(slot.location, &raw).and_then(record::read_record) {
                    Some(Record::Put(message)) if message.seq == slot.seq => page.messages.push(Arc::new(message)),
                    _ => {
                        self.report_damage(mailbox, slot.location, &raw);
                        page.damaged.push(slot.seq);
                    }
                }
            }
        }
        page.damaged.sort_unstable();
        Ok(page)
    }

    /// Returns the runs to read, and the corrupt messages whose segment was removed.
    fn plan(&self, mailbox: &str, from: Seq, max_messages: usize, max_bytes: u64) -> (Vec<Run>, Vec<Seq>) {
        let index = self.index();
        let (mut runs, mut corrupt): (Vec<Run>, Vec<Seq>) = Default::default();
        let Some(mailbox_index) = index.mailboxes.get(mailbox) else { return (runs, corrupt) };
        let mut bytes = 0;
        for slot in mailbox_index.live_from(from).take(max_messages.max(1)) {
            let Some(file) = self.reader.file(slot.location.segment) else {
                corrupt.push(slot.seq);
                continue;
            };
            bytes += u64::from(slot.location.length);
            if bytes > max_bytes && !runs.is_empty() {
                break;
            }
            match runs.last_mut() {
                Some(run) if run.can_extend_to(slot.location) => run.slots.push(*slot),
                _ => runs.push(Run { file, start: slot.location.offset, slots: vec![*slot] }),
            }
        }
        (runs, corrupt)
    }

    fn report_damage(&self, mailbox: &str, location: Location, raw: &Bytes) {
        tracing::error!(
            mailbox,
            segment = location.segment,
            offset = location.offset,
            "a message is corrupt; its bytes are copied to a damaged-* file"
        );
        set_aside(&*self.disk, location.segment, location.offset.into(), raw);
    }
}

/// Records of one segment that are fetched with one read.
struct Run {
    file: Arc<dyn DiskFile>,
    start: u32,
    slots: Vec<Slot>,
}

impl Run {
    fn end(&self) -> u32 {
        self.slots.last().map_or(self.start, |slot| slot.location.offset + slot.location.length)
    }

    fn can_extend_to(&self, location: Location) -> bool {
        self.slots.last().is_some_and(|last| last.location.segment == location.segment)
            && location.offset >= self.end()
            && location.offset - self.end() <= MAX_GAP
            && location.offset + location.length - self.start <= MAX_RUN
    }

    fn read(&self) -> Result<Bytes, StoreError> {
        let mut buffer = vec![0; (self.end() - self.start) as usize];
        let segment = self.slots.first().map_or(0, |slot| slot.location.segment);
        self.file.read_at(self.start.into(), &mut buffer).map_err(io_error("read", segment))?;
        Ok(Bytes::from(buffer))
    }
}
