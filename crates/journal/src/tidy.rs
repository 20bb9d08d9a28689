//! How the journal gets smaller: the oldest segment goes, once what is still needed of it has been written anew at the end.
//! A crash at any point leaves an entry at its old place, at its new one, or at both.

use crate::book::Book;
use crate::entry::Entry;
use crate::log::{JournalLog, Place};
use std::io;
use std::vec;

/// Bytes that are written anew in one turn, so that callers don't wait long.
const TURN_BYTES: usize = 1 << 20;

#[derive(Debug, Clone)]
pub struct TidyOptions {
    /// A segment whose youngest entry is older goes.
    pub keep_ms: u64,
    /// Past it the oldest segment goes, with the answered calls in it.
    pub max_bytes: u64,
}

/// Makes the journal smaller, a turn at a time.
pub struct Tidy {
    options: TidyOptions,
    /// While so much is needed that nothing is gained, it is tried again only when the journal has grown.
    pressed_from: u64,
    leaving: Option<Leaving>,
}

/// The segment that goes.
struct Leaving {
    number: u32,
    rest: vec::IntoIter<(Place, Entry)>,
    /// It goes because there is too much.
    pressed: bool,
    bytes: u64,
    copied: u64,
}

impl Tidy {
    pub fn new(options: TidyOptions) -> Self {
        Self { pressed_from: options.max_bytes, options, leaving: None }
    }

    /// Does a part of the work, if there is any. `with_book` lends the book, as shortly as it can be.
    pub fn turn(
        &mut self,
        log: &mut JournalLog,
        now: u64,
        mut with_book: impl FnMut(&mut dyn FnMut(&mut Book)),
    ) -> io::Result<bool> {
        if self.leaving.is_none() {
            self.leaving = self.choose(log, now)?;
        }
        let Some(leaving) = &mut self.leaving else { return Ok(false) };
        let mut needed = Vec::new();
        with_book(&mut |book| needed = leaving.some_needed(book));
        if !needed.is_empty() {
            let before = log.bytes();
            let places = log.append(&needed, now)?;
            leaving.copied += log.bytes() - before;
            with_book(&mut |book| {
                needed.iter().zip(&places).for_each(|(entry, place)| book.restore(entry, place.clone()));
            });
        }
        if leaving.rest.as_slice().is_empty() {
            self.finish(log)?;
        }
        Ok(true)
    }

    fn choose(&self, log: &JournalLog, now: u64) -> io::Result<Option<Leaving>> {
        let Some((number, segment)) = log.oldest() else { return Ok(None) };
        let pressed = log.bytes() > self.pressed_from;
        let is_old = segment.newest.saturating_add(self.options.keep_ms) < now;
        if !pressed && !is_old {
            return Ok(None);
        }
        let bytes = segment.bytes;
        Ok(Some(Leaving { number, rest: log.entries(number)?.into_iter(), pressed, bytes, copied: 0 }))
    }

    fn finish(&mut self, log: &mut JournalLog) -> io::Result<()> {
        let Some(gone) = self.leaving.take() else { return Ok(()) };
        log.remove(gone.number)?;
        tracing::debug!(
            segment = gone.number,
            bytes = gone.bytes,
            copied = gone.copied,
            "removed a part of the call journal"
        );
        if gone.pressed {
            let gained_little = gone.copied > gone.bytes / 2;
            let more = if gained_little { log.bytes() + log.segment_bytes() } else { 0 };
            self.pressed_from = self.options.max_bytes.max(more);
        }
        Ok(())
    }
}

impl Leaving {
    fn some_needed(&mut self, book: &mut Book) -> Vec<Entry> {
        let (mut needed, mut weight) = (Vec::new(), 0);
        while weight < TURN_BYTES {
            let Some((place, entry)) = self.rest.next() else { break };
            // What is only looked at costs as well.
            weight += 64;
            let given_up = self.pressed && book.give_up(&entry, &place);
            if !given_up && book.needs(&entry, &place) {
                weight += entry.weight();
                needed.push(entry);
            }
        }
        needed
    }
}
