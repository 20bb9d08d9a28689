//! The place of one partition at a broker: the mailboxes that serve it now, which are an engine of this process or a link to
//! another broker, or none while its ownership changes.
//!
//! Connections stay attached to a slot while its mailboxes change. One that has done nothing there but subscribe is attached
//! to the new mailboxes without noticing. For any other, deliveries may be unconfirmed and messages unacknowledged: it is told
//! to end ([`Outgoing::Moved`]), and its peer connects again and repeats what was not confirmed. Commands wait in the slot
//! while there are no mailboxes, and their deadlines run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_engine::{Command, ConnId, Delivery, Mailboxes, Outbox, Outgoing, Peer, Refusal};

/// Maximum number of commands of a connection that wait for mailboxes. One with more is told to end; its peer tries again.
const MAX_WAITING: usize = 4096;
/// Maximum size of the messages among them, of one connection.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// Maximum size of the messages that wait at a slot.
const MAX_WAITING_BYTES_OF_ALL: usize = 64 << 20;

/// Milliseconds of the broker's monotonic clock.
pub type SlotClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// One partition, as the connections of a broker see it.
pub struct Slot {
    clock: SlotClock,
    state: Mutex<State>,
    /// Held during a change, so that changes don't overlap.
    changing: Mutex<()>,
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    mailboxes: Option<Arc<dyn Mailboxes>>,
    /// Counts the changes of `mailboxes`.
    term: u64,
    conns: HashMap<ConnId, Conn>,
}

/// A connection. The slot's lock is never held while mailboxes or outboxes are called, because they call each other under
/// locks of their own.
struct Conn {
    peer: Peer,
    shared: Arc<SharedConn>,
    /// Its number at the mailboxes, once it is attached to them.
    attached: Option<ConnId>,
    /// A call of `connect` is under way for it.
    is_connecting: bool,
    /// Commands to be repeated at the next mailboxes.
    host: Option<Command>,
    claim: Option<Command>,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
}

/// A command that waits for mailboxes.
struct Waiting {
    since: u64,
    command: Command,
}

/// The part of a connection that its outboxes use.
struct SharedConn {
    outbox: Arc<dyn Outbox>,
    /// The term of the mailboxes that it is attached to. What others send comes too late.
    term: AtomicU64,
    /// It has state at the mailboxes that can't be repeated.
    is_used: AtomicBool,
    is_subscribed: AtomicBool,
}

impl Default for Slot {
    /// A slot at which time stands still.
    fn default() -> Self {
        Self::new(Arc::new(|| 0))
    }
}

impl Slot {
    /// A slot without mailboxes.
    pub fn new(clock: SlotClock) -> Self {
        Self { clock, state: Mutex::default(), changing: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Tells connections to end that have commands which wait for longer than so many milliseconds: a sender has to learn that
    /// nothing happens.
    pub fn end_waiting(&self, limit: u64) {
        let now = (self.clock)();
        let is_late = |_: &ConnId, known: &mut Conn| {
            let oldest = known.waiting.iter().find(|waiting| !is_repeatable(&waiting.command));
            oldest.is_some_and(|oldest| now.saturating_sub(oldest.since) > limit)
        };
        let late: Vec<Conn> = self.state().conns.extract_if(is_late).map(|(_, known)| known).collect();
        late.iter().for_each(|known| known.shared.outbox.deliver(&mut vec![Outgoing::Moved]));
    }

    /// Replaces the mailboxes of the partition.
    pub fn set(&self, mailboxes: Option<Arc<dyn Mailboxes>>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, conns) = {
            let mut state = self.state();
            state.term += 1;
            let before = std::mem::replace(&mut state.mailboxes, mailboxes);
            let conns: Vec<(ConnId, Option<ConnId>, Arc<SharedConn>)> = state
                .conns
                .iter_mut()
                .map(|(conn, known)| (*conn, known.attached.take(), Arc::clone(&known.shared)))
                .collect();
            (before, conns)
        };
        for (conn, attached, shared) in conns {
            // Nothing of the former mailboxes counts from here on.
            shared.term.store(0, Ordering::SeqCst);
            if let (Some(before), Some(attached)) = (&before, attached) {
                before.detach(attached);
            }
            if shared.is_used.load(Ordering::SeqCst) {
                self.state().conns.remove(&conn);
                shared.outbox.deliver(&mut vec![Outgoing::Moved]);
            } else {
                self.connect(conn);
            }
        }
    }

    /// Whether mailboxes serve the partition.
    pub fn is_served(&self) -> bool {
        self.state().mailboxes.is_some()
    }

    /// Attaches a connection to the mailboxes, if there are any, and submits what it waits for. Repeated if they change
    /// meanwhile.
    fn connect(&self, conn: ConnId) {
        let mut is_repeated = false;
        loop {
            let (mailboxes, term, peer, shared) = {
                let mut guard = self.state();
                let state = &mut *guard;
                let Some(known) = state.conns.get_mut(&conn).filter(|known| known.attached.is_none()) else { return };
                // Another call notices the change and goes on.
                if known.is_connecting && !is_repeated {
                    return;
                }
                let mailboxes = state.mailboxes.clone();
                known.is_connecting = mailboxes.is_some();
                let Some(mailboxes) = mailboxes else { return };
                (mailboxes, state.term, known.peer.clone(), Arc::clone(&known.shared))
            };
            is_repeated = true;
            shared.term.store(term, Ordering::Release);
            let outbox = Arc::new(SlotOutbox { term, conn: Arc::clone(&shared) });
            let attached = mailboxes.attach(peer, outbox);
            if self.submit_waiting(conn, term, &*mailboxes, attached) {
                return;
            }
            mailboxes.detach(attached);
        }
    }

    /// Submits the commands that wait, and those that arrive meanwhile. Returns false if the mailboxes have changed, or the
    /// connection has left.
    fn submit_waiting(&self, conn: ConnId, term: u64, mailboxes: &dyn Mailboxes, attached: ConnId) -> bool {
        let mut is_first = true;
        loop {
            let mut commands = {
                let mut state = self.state();
                if state.term != term {
                    return false;
                }
                let Some(known) = state.conns.get_mut(&conn) else { return false };
                let mut commands = Vec::new();
                if std::mem::take(&mut is_first) {
                    commands.extend(known.host.clone());
                    commands.extend(known.claim.clone());
                    let is_subscribed = known.shared.is_subscribed.load(Ordering::Acquire);
                    commands.extend(is_subscribed.then_some(Command::Subscribe));
                }
                let now = (self.clock)();
                let waited: Vec<Command> = known.waiting.drain(..).map(|waiting| waiting.into_command(now)).collect();
                known.waiting_bytes = 0;
                known.note(&waited);
                commands.extend(waited);
                known.remember(&commands);
                if commands.is_empty() {
                    known.attached = Some(attached);
                    known.is_connecting = false;
                    return true;
                }
                commands
            };
            mailboxes.submit(attached, &mut commands);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailboxes for Slot {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        let conn = ConnId(self.next.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(SharedConn {
            outbox,
            term: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
            is_subscribed: AtomicBool::new(false),
        });
        let known = Conn {
            peer,
            shared,
            attached: None,
            is_connecting: false,
            host: None,
            claim: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
        };
        self.state().conns.insert(conn, known);
        self.connect(conn);
        conn
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        let (mailboxes, attached) = {
            let mut guard = self.state();
            let state = &mut *guard;
            let others: usize = match state.mailboxes {
                Some(_) => 0,
                None => state.conns.values().map(|known| known.waiting_bytes).sum(),
            };
            let Some(known) = state.conns.get_mut(&conn) else { return commands.clear() };
            match (&state.mailboxes, known.attached) {
                (Some(mailboxes), Some(attached)) => {
                    known.note(commands);
                    known.remember(commands);
                    (Arc::clone(mailboxes), attached)
                }
                _ if known.waits_for(commands, (self.clock)()) && others <= MAX_WAITING_BYTES_OF_ALL => return,
                _ => {
                    let removed = state.conns.remove(&conn);
                    drop(guard);
                    removed.iter().for_each(|known| known.shared.outbox.deliver(&mut vec![Outgoing::Moved]));
                    return;
                }
            }
        };
        mailboxes.submit(attached, commands);
    }

    fn detach(&self, conn: ConnId) {
        let (mailboxes, removed) = {
            let mut state = self.state();
            (state.mailboxes.clone(), state.conns.remove(&conn))
        };
        if let (Some(mailboxes), Some(attached)) = (mailboxes, removed.and_then(|known| known.attached)) {
            mailboxes.detach(attached);
        }
    }

    fn congested(&self) -> bool {
        let mailboxes = self.state().mailboxes.clone();
        mailboxes.is_some_and(|mailboxes| mailboxes.congested())
    }
}

impl Waiting {
    /// The command, with what is left of its deadline.
    fn into_command(self, now: u64) -> Command {
        let Self { since, mut command } = self;
        if let Command::Deliver(Delivery { deadline_ms: Some(deadline), .. }) = &mut command {
            *deadline = deadline.saturating_sub(now.saturating_sub(since));
        }
        command
    }
}

impl Conn {
    /// Keeps commands until there are mailboxes. Returns false if there are too many.
    fn waits_for(&mut self, commands: &mut Vec<Command>, since: u64) -> bool {
        let bytes = |command: &Command| match command {
            Command::Deliver(delivery) => delivery.sealed.len(),
            Command::Event { body, .. } => body.len(),
            _ => 0,
        };
        self.waiting_bytes += commands.iter().map(bytes).sum::<usize>();
        self.waiting.extend(commands.drain(..).map(|command| Waiting { since, command }));
        self.waiting.len() <= MAX_WAITING && self.waiting_bytes <= MAX_WAITING_BYTES
    }

    /// Notes whether the commands leave state at the mailboxes that can't be repeated.
    fn note(&self, commands: &[Command]) {
        if !commands.iter().all(is_repeatable) {
            self.shared.is_used.store(true, Ordering::Release);
        }
    }

    /// Remembers the commands that are repeated at the next mailboxes.
    fn remember(&mut self, commands: &[Command]) {
        for command in commands {
            match command {
                Command::ActAsHost => self.host = Some(Command::ActAsHost),
                Command::Claim { .. } => self.claim = Some(command.clone()),
                Command::Subscribe => self.shared.is_subscribed.store(true, Ordering::Release),
                _ => {}
            }
        }
    }
}

/// Whether a command leaves no state at the mailboxes but what the slot repeats at the next ones.
fn is_repeatable(command: &Command) -> bool {
    matches!(command, Command::ActAsHost | Command::Claim { .. } | Command::Subscribe | Command::Unfollow { .. })
}

/// The outbox of a connection, as the mailboxes of one term see it.
struct SlotOutbox {
    term: u64,
    conn: Arc<SharedConn>,
}

impl Outbox for SlotOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        // Noted before the check: a connection that is attached to the next mailboxes must not get a message of these.
        if outgoing.iter().any(|outgoing| matches!(outgoing, Outgoing::Message { .. })) {
            self.conn.is_used.store(true, Ordering::SeqCst);
        }
        // A frame that passes this check while the mailboxes change is not wrong, only late: a receipt is true, and a
        // message can arrive twice.
        if self.conn.term.load(Ordering::SeqCst) != self.term {
            return outgoing.clear();
        }
        let is_displaced =
            |outgoing: &Outgoing| matches!(outgoing, Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. });
        if outgoing.iter().any(is_displaced) {
            // It must not displace its successor when it is subscribed again.
            self.conn.is_subscribed.store(false, Ordering::Release);
        }
        self.conn.outbox.deliver(outgoing);
    }
}
