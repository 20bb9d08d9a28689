//! Mailboxes in several partitions as one. A router is itself an implementation of [`Mailboxes`], and so is each partition:
//! the engine of this broker, or a link to the broker that owns it.
//!
//! Every connection is attached to all partitions, so each of them knows who is connected. A message is in the partition of
//! its recipient; a reply stays in the partition of its request, which is the one of the replying agent. Otherwise the
//! settlement of a request and the acceptance of its reply could not be one record. An agent's mailbox is therefore spread:
//! messages to it are in its home partition, replies to its requests in those of the hosts. Messages of one sender keep their
//! order except between replies and other messages.

mod answers;
mod outbox;
mod routes;

use crate::{Partition, Partitions};
use answers::Answers;
use bytestring::ByteString;
use outbox::RoutedOutbox;
pub use routes::stays_with_sender;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Peer};

/// Mailboxes that are spread over partitions.
pub struct Router {
    count: Partitions,
    partitions: Vec<Arc<dyn Mailboxes>>,
    conns: RwLock<HashMap<ConnId, Arc<RoutedConn>>>,
    next: AtomicU64,
}

/// A connection, as each partition knows it.
struct RoutedConn {
    inner: Vec<ConnId>,
    state: Arc<Mutex<ConnState>>,
}

/// What the router has to remember of a connection.
pub(crate) struct ConnState {
    count: Partitions,
    /// The partition of the peer's own mailbox.
    home: Partition,
    /// Whether the peer is a host, by its credential or by its announcement.
    is_host: bool,
    /// Number of delivers so far: receipts name them by it.
    delivers: u64,
    /// For each partition, the number that it expects of the next deliver.
    expected: Vec<u64>,
    /// The partitions of replies that were pushed, to acknowledge them by id.
    pushed: routes::PushedReplies,
    answers: Answers,
    /// The connection was told that another one has subscribed to its mailbox.
    is_displaced: bool,
}

impl Router {
    /// The mailboxes of these partitions, in their order. Their sequence numbers must be those of [`Partition::first_seq`].
    /// Returns `None` if there are none or too many.
    pub fn new(partitions: Vec<Arc<dyn Mailboxes>>) -> Option<Self> {
        let count = Partitions::new(u16::try_from(partitions.len()).ok()?)?;
        Some(Self { count, partitions, conns: RwLock::default(), next: AtomicU64::new(1) })
    }

    fn conn(&self, conn: ConnId) -> Option<Arc<RoutedConn>> {
        self.conns.read().unwrap_or_else(PoisonError::into_inner).get(&conn).cloned()
    }
}

impl Mailboxes for Router {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        let state = Arc::new(Mutex::new(ConnState::new(self.count, &peer)));
        let attach = |(number, mailboxes): (usize, &Arc<dyn Mailboxes>)| {
            let partition = Partition(number as u16);
            let routed = RoutedOutbox { partition, state: Arc::clone(&state), outbox: Arc::clone(&outbox) };
            mailboxes.attach(peer.clone(), Arc::new(routed))
        };
        let inner = self.partitions.iter().enumerate().map(attach).collect();
        let conn = ConnId(self.next.fetch_add(1, Ordering::Relaxed));
        let routed = Arc::new(RoutedConn { inner, state });
        self.conns.write().unwrap_or_else(PoisonError::into_inner).insert(conn, routed);
        conn
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        let Some(conn) = self.conn(conn) else { return commands.clear() };
        let mut routed: Vec<Vec<Command>> = vec![Vec::new(); self.partitions.len()];
        {
            let mut state = lock(&conn.state);
            commands.drain(..).for_each(|command| state.route(command, &mut routed));
        }
        for ((mailboxes, inner), mut commands) in self.partitions.iter().zip(&conn.inner).zip(routed) {
            if !commands.is_empty() {
                mailboxes.submit(*inner, &mut commands);
            }
        }
    }

    fn detach(&self, conn: ConnId) {
        let removed = self.conns.write().unwrap_or_else(PoisonError::into_inner).remove(&conn);
        for (mailboxes, inner) in self.partitions.iter().zip(removed.iter().flat_map(|conn| &conn.inner)) {
            mailboxes.detach(*inner);
        }
    }

    fn congested(&self) -> bool {
        self.partitions.iter().any(|mailboxes| mailboxes.congested())
    }
}

impl ConnState {
    fn new(count: Partitions, peer: &Peer) -> Self {
        let partitions = usize::from(count.count());
        Self {
            count,
            home: count.of(&peer.name),
            is_host: peer.rights.host && !peer.rights.unrestricted,
            delivers: 0,
            expected: vec![1; partitions],
            pushed: routes::PushedReplies::default(),
            answers: Answers::new(partitions),
            is_displaced: false,
        }
    }
}

/// Locks the state of a connection. No code panics while it holds the lock.
pub(crate) fn lock(state: &Mutex<ConnState>) -> MutexGuard<'_, ConnState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id of a request whose answers are gathered.
type RequestId = ByteString;
