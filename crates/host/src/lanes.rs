//! Lanes: the processes of one modern client at a legacy stdio server.
//!
//! Such a server can't say which call its requests and log messages belong to, and two users of one agent must not see
//! each other's questions. So a call during which the server may send a request has a process to itself: the first one
//! uses the client's usual session, concurrent ones get further sessions. If no further process may be started, a call
//! waits for a lane.

use crate::session::SessionId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Separates the client's key from the number of the lane. Keys of clients contain no control characters.
const SEPARATOR: char = '\u{1f}';

/// The lanes in use at one server.
#[derive(Default)]
pub struct Lanes {
    taken: Mutex<HashMap<SessionId, BTreeSet<usize>>>,
    freed: Notify,
}

/// A lane in use; freed on drop.
pub struct Lane {
    lanes: Arc<Lanes>,
    client: SessionId,
    number: usize,
}

impl Lanes {
    /// The first free lane of a client.
    pub fn take(self: &Arc<Self>, client: SessionId) -> Lane {
        let mut taken = self.lock();
        let numbers = taken.entry(client.clone()).or_default();
        let number = (0..).find(|number| !numbers.contains(number)).unwrap_or_default();
        numbers.insert(number);
        Lane { lanes: Arc::clone(self), client, number }
    }

    /// Resolves when a lane is freed after this call.
    pub fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, BTreeSet<usize>>> {
        self.taken.lock().expect("no code panics while it holds this lock")
    }
}

impl Lane {
    /// Whether it is the client's usual session.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    pub fn session(&self) -> SessionId {
        let SessionId { mailbox, key } = self.client.clone();
        if self.is_first() {
            return SessionId { mailbox, key };
        }
        SessionId { mailbox, key: format!("{key}{SEPARATOR}{}", self.number) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut taken = self.lanes.lock();
        if let Some(numbers) = taken.get_mut(&self.client) {
            numbers.remove(&self.number);
            if numbers.is_empty() {
                taken.remove(&self.client);
            }
        }
        self.lanes.freed.notify_waiters();
    }
}

impl SessionId {
    /// Whether this is a session of the client, on any lane.
    pub fn is_lane_of(&self, client: &Self) -> bool {
        let key = self.key.split_once(SEPARATOR).map_or(self.key.as_str(), |(key, _)| key);
        self.mailbox == client.mailbox && key == client.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: &str) -> SessionId {
        SessionId { mailbox: "w".to_owned(), key: key.to_owned() }
    }

    #[test]
    fn concurrent_calls_of_a_client_get_different_sessions_which_are_reused() {
        let lanes = Arc::new(Lanes::default());
        let (first, second, other) = (lanes.take(client("s")), lanes.take(client("s")), lanes.take(client("t")));
        assert_eq!((first.session(), other.session()), (client("s"), client("t")));
        assert_ne!(second.session(), first.session());
        assert!(second.session().is_lane_of(&client("s")) && !second.session().is_lane_of(&client("t")));
        drop(first);
        assert!(lanes.take(client("s")).is_first());
        drop((second, other));
        assert!(lanes.lock().is_empty());
    }
}
