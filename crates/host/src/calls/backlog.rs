//! The bytes of entries that wait for the journal's next sync. At the limit the host takes neither requests from its
//! mailbox nor answers from its servers, so that a disk that stalls does not fill the memory.

use crate::host::Host;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;
use toolbus_journal::Ticket;

pub struct Backlog {
    limit: usize,
    waiting: Mutex<Waiting>,
    freed: Notify,
}

struct Waiting {
    /// In the order of the tickets.
    entries: VecDeque<(Ticket, usize)>,
    bytes: usize,
    last_synced: Ticket,
}

impl Backlog {
    pub fn new(limit: usize) -> Self {
        let waiting = Waiting { entries: VecDeque::new(), bytes: 0, last_synced: Ticket(0) };
        Self { limit, waiting: Mutex::new(waiting), freed: Notify::new() }
    }

    /// Counts an entry until its ticket is reported, which may have happened already.
    pub fn add(&self, ticket: Ticket, bytes: usize) {
        let mut waiting = self.lock();
        if ticket > waiting.last_synced {
            waiting.entries.push_back((ticket, bytes));
            waiting.bytes += bytes;
        }
    }

    /// The sync of these tickets, and with them of all earlier ones, has ended.
    pub fn synced(&self, tickets: &[Ticket]) {
        let Some(last) = tickets.iter().max() else { return };
        let mut waiting = self.lock();
        waiting.last_synced = waiting.last_synced.max(*last);
        while let Some((_, bytes)) = waiting.entries.pop_front_if(|(ticket, _)| *ticket <= *last) {
            waiting.bytes -= bytes;
        }
        drop(waiting);
        self.freed.notify_waiters();
    }

    /// Waits until the entries take less than the limit. Cancellation-safe.
    async fn room(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.lock().bytes < self.limit {
                return;
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no code panics while it holds this lock")
    }
}

impl Host {
    /// Waits until the journal may take more entries, or the host has stopped. Cancellation-safe.
    pub async fn journal_room(&self) {
        tokio::select! {
            () = self.calls.backlog.room() => {}
            () = self.stopped.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn has_room(backlog: &Backlog) -> bool {
        backlog.room().now_or_never().is_some()
    }

    #[test]
    fn there_is_room_below_the_limit_and_again_once_entries_are_synced() {
        let backlog = Backlog::new(10);
        backlog.add(Ticket(1), 4);
        backlog.add(Ticket(3), 5);
        assert!(has_room(&backlog), "9 of 10 bytes");
        backlog.add(Ticket(4), 1);
        assert!(!has_room(&backlog), "10 of 10 bytes");
        // Ticket 2 has a waiter of its own, and is counted nowhere.
        backlog.synced(&[Ticket(1), Ticket(2)]);
        assert!(has_room(&backlog), "6 of 10 bytes");
    }

    #[test]
    fn an_entry_whose_ticket_was_reported_before_it_is_counted_takes_no_room() {
        let backlog = Backlog::new(1);
        backlog.synced(&[Ticket(1)]);
        backlog.add(Ticket(1), 100);
        assert!(has_room(&backlog));
    }

    #[test]
    fn a_waiter_is_woken_by_the_sync() {
        let backlog = Backlog::new(1);
        backlog.add(Ticket(1), 1);
        let mut waiter = Box::pin(backlog.room());
        assert!(waiter.as_mut().now_or_never().is_none());
        backlog.synced(&[Ticket(1)]);
        assert!(waiter.now_or_never().is_some());
    }
}
