//! Reading messages back. Neighbours on disk are fetched in one read.

use crate::index::{Place, Slot};
use crate::log::io_error;
use crate::record::{self, Record};
use crate::{DiskFile, LogStore, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_engine::{Page, Seq};
use toolbus_wal::set_aside;

/// Records at most this far apart are read together, and at most this much at once.
const MAX_GAP: u32 = 4 << 10;
const MAX_RUN: u32 = 256 << 10;

impl LogStore {
    pub(crate) fn read_page(
        &self,
        mailbox: &str,
        from: Seq,
        max_messages: usize,
        max_bytes: u64,
    ) -> Result<Page, StoreError> {
        let (runs, lost) = self.plan(mailbox, from, max_messages, max_bytes);
        let mut page = Page { from, damaged: lost, ..Page::default() };
        for run in runs {
            let bytes = run.read()?;
            for slot in &run.slots {
                let offset = (slot.place.offset - run.start) as usize;
                let raw = bytes.slice(offset..offset + slot.place.length as usize);
                match record::read_record(self.options.checksum_key(), raw.clone()) {
                    Some(Record::Put(message)) if message.seq == slot.seq => page.messages.push(Arc::new(message)),
                    _ => {
                        self.report_damage(mailbox, slot.place, &raw);
                        page.damaged.push(slot.seq);
                    }
                }
            }
        }
        page.damaged.sort_unstable();
        Ok(page)
    }

    /// Which stretches of which files to read, and which messages have no file any more.
    fn plan(&self, mailbox: &str, from: Seq, max_messages: usize, max_bytes: u64) -> (Vec<Run>, Vec<Seq>) {
        let index = self.index();
        let (mut runs, mut lost): (Vec<Run>, Vec<Seq>) = Default::default();
        let Some(shelf) = index.shelves.get(mailbox) else { return (runs, lost) };
        let mut bytes = 0;
        for slot in shelf.live_from(from).take(max_messages.max(1)) {
            let Some(segment) = index.segments.get(&slot.place.segment) else {
                lost.push(slot.seq);
                continue;
            };
            bytes += u64::from(slot.place.length);
            if bytes > max_bytes && !runs.is_empty() {
                break;
            }
            match runs.last_mut() {
                Some(run) if run.takes(slot.place) => run.slots.push(*slot),
                _ => runs.push(Run { file: Arc::clone(&segment.file), start: slot.place.offset, slots: vec![*slot] }),
            }
        }
        (runs, lost)
    }

    fn report_damage(&self, mailbox: &str, place: Place, raw: &Bytes) {
        tracing::error!(
            mailbox,
            segment = place.segment,
            offset = place.offset,
            "a message is damaged; it is set aside"
        );
        set_aside(&*self.disk, place.segment, place.offset.into(), raw);
    }
}

struct Run {
    file: Arc<dyn DiskFile>,
    start: u32,
    slots: Vec<Slot>,
}

impl Run {
    fn end(&self) -> u32 {
        self.slots.last().map_or(self.start, |slot| slot.place.offset + slot.place.length)
    }

    fn takes(&self, place: Place) -> bool {
        self.slots.last().is_some_and(|last| last.place.segment == place.segment)
            && place.offset >= self.end()
            && place.offset - self.end() <= MAX_GAP
            && place.offset + place.length - self.start <= MAX_RUN
    }

    fn read(&self) -> Result<Bytes, StoreError> {
        let mut buffer = vec![0; (self.end() - self.start) as usize];
        let segment = self.slots.first().map_or(0, |slot| slot.place.segment);
        self.file.read_at(self.start.into(), &mut buffer).map_err(io_error("read", segment))?;
        Ok(Bytes::from(buffer))
    }
}
