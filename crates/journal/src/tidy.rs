//! How the journal gets smaller: the oldest segment goes, once what is still needed of it has been written anew at the end.
//! A crash at any point leaves an entry at its old place, at its new one, or at both.

use crate::book::Book;
use crate::entry::Entry;
use crate::log::{Contents, JournalLog, Place};
use std::io;
use std::vec;

/// Bytes that are written anew in one turn, so that callers don't wait long.
const TURN_BYTES: usize = 256 << 10;

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

/// What is done with the log and the book while they are lent.
pub type Look<'a> = dyn FnMut(&mut JournalLog, &mut Book) + 'a;

struct Chosen {
    number: u32,
    contents: Contents,
    pressed: bool,
    bytes: u64,
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

    /// Does a part of the work, if there is any. `lend` lends the log and the book, as shortly as it can be: callers wait for
    /// them.
    pub fn turn(&mut self, now: u64, mut lend: impl FnMut(&mut Look<'_>)) -> io::Result<bool> {
        if self.leaving.is_none() {
            let mut chosen = Ok(None);
            lend(&mut |log, _| chosen = self.choose(log, now));
            let Some(chosen) = chosen? else { return Ok(false) };
            let Chosen { number, contents, pressed, bytes } = chosen;
            let rest = contents.read()?.into_iter();
            self.leaving = Some(Leaving { number, rest, pressed, bytes, copied: 0 });
        }
        let Some(leaving) = &mut self.leaving else { return Ok(false) };
        let mut moved = Ok(());
        lend(&mut |log, book| moved = leaving.move_some(log, book, now));
        moved?;
        if leaving.rest.as_slice().is_empty() {
            self.finish(&mut lend)?;
        }
        Ok(true)
    }

    fn choose(&self, log: &JournalLog, now: u64) -> io::Result<Option<Chosen>> {
        let Some((number, segment)) = log.oldest() else { return Ok(None) };
        let pressed = log.bytes() > self.pressed_from;
        let is_old = segment.newest.saturating_add(self.options.keep_ms) < now;
        if !pressed && !is_old {
            return Ok(None);
        }
        let bytes = segment.bytes;
        Ok(Some(Chosen { number, contents: log.contents(number)?, pressed, bytes }))
    }

    fn finish(&mut self, lend: &mut impl FnMut(&mut Look<'_>)) -> io::Result<()> {
        let Some(gone) = self.leaving.take() else { return Ok(()) };
        let (mut moved, mut file, mut left) = (None, None, (0, 0));
        lend(&mut |log, _| (moved, file) = (log.unsynced(), Some(log.file_of(gone.number))));
        if let (Some(moved), Some(file)) = (&moved, &file) {
            // What was moved has to be safe at its new place first.
            moved.sync()?;
            file.remove()?;
            lend(&mut |log, _| {
                log.synced(moved);
                log.removed(gone.number);
                left = (log.bytes(), log.segment_bytes());
            });
        }
        tracing::debug!(
            segment = gone.number,
            bytes = gone.bytes,
            copied = gone.copied,
            "removed a part of the call journal"
        );
        if gone.pressed {
            let gained_little = gone.copied > gone.bytes / 2;
            let more = if gained_little { left.0 + left.1 } else { 0 };
            self.pressed_from = self.options.max_bytes.max(more);
        }
        Ok(())
    }
}

impl Leaving {
    /// Writes some of what is still needed anew.
    fn move_some(&mut self, log: &mut JournalLog, book: &mut Book, now: u64) -> io::Result<()> {
        let needed = self.some_needed(book);
        if needed.is_empty() {
            return Ok(());
        }
        let before = log.bytes();
        let places = log.append(&needed, now)?;
        self.copied += log.bytes() - before;
        needed.iter().zip(places).for_each(|(entry, place)| book.restore(entry, place));
        Ok(())
    }

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
