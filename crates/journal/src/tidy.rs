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

/// What is needed to make a journal smaller.
pub struct Lent<'a> {
    pub log: &'a mut JournalLog,
    pub book: &'a mut Book,
    /// Entries of this segment and of later ones may not be in the book yet.
    pub unentered_from: u32,
}

/// What is done while it is lent.
pub type Look<'a> = dyn FnMut(&mut Lent<'_>) -> io::Result<()> + 'a;

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

    /// Does a part of the work, if there is any. `lend` lends what it is about, as shortly as it can be: callers wait for it. It
    /// fails when the journal has failed.
    pub fn turn(&mut self, now: u64, mut lend: impl FnMut(&mut Look<'_>) -> io::Result<()>) -> io::Result<bool> {
        if self.leaving.is_none() {
            let mut chosen = None;
            lend(&mut |lent| {
                chosen = self.choose(lent, now)?;
                Ok(())
            })?;
            let Some(Chosen { number, contents, pressed, bytes }) = chosen else { return Ok(false) };
            let rest = contents.read()?.into_iter();
            self.leaving = Some(Leaving { number, rest, pressed, bytes, copied: 0 });
        }
        let Some(leaving) = &mut self.leaving else { return Ok(false) };
        lend(&mut |lent| leaving.move_some(lent, now))?;
        if leaving.rest.as_slice().is_empty() {
            self.finish(&mut lend)?;
        }
        Ok(true)
    }

    fn choose(&self, lent: &Lent<'_>, now: u64) -> io::Result<Option<Chosen>> {
        let log = &lent.log;
        let Some((number, segment)) = log.oldest() else { return Ok(None) };
        let pressed = log.bytes() > self.pressed_from;
        let is_old = segment.newest.saturating_add(self.options.keep_ms) < now;
        // The book does not know yet that it needs what it was not told of.
        if number >= lent.unentered_from || (!pressed && !is_old) {
            return Ok(None);
        }
        let bytes = segment.bytes;
        Ok(Some(Chosen { number, contents: log.contents(number)?, pressed, bytes }))
    }

    fn finish(&mut self, lend: &mut impl FnMut(&mut Look<'_>) -> io::Result<()>) -> io::Result<()> {
        let Some(gone) = self.leaving.take() else { return Ok(()) };
        let (mut moved, mut left) = (None, (0, 0));
        lend(&mut |lent| {
            // What takes the place of an entry may not be written yet.
            lent.log.flush()?;
            moved = lent.log.unsynced().map(|unsynced| (unsynced, lent.log.file_of(gone.number)));
            Ok(())
        })?;
        let Some((moved, file)) = moved else { return Ok(()) };
        moved.sync()?;
        lend(&mut |lent| {
            // Only now: where another sync failed meanwhile, this one says nothing.
            lent.log.synced(&moved);
            Ok(())
        })?;
        file.remove()?;
        lend(&mut |lent| {
            lent.log.removed(gone.number);
            left = (lent.log.bytes(), lent.log.segment_bytes());
            Ok(())
        })?;
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
    fn move_some(&mut self, lent: &mut Lent<'_>, now: u64) -> io::Result<()> {
        let Lent { log, book, .. } = lent;
        let needed = self.some_needed(book);
        if needed.is_empty() {
            return Ok(());
        }
        let before = log.bytes();
        let places = log.append_here(&needed, now)?;
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
