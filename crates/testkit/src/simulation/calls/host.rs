//! A host: its state folder, and the process that carries out the decisions of its call machine.

use super::World;
use super::callers::Callers;
use super::oracle::RunNo;
use super::wire::{Outcome, Work};
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use toolbus_call::{CallMachine, CallNo, Effect, Event, NotificationNo, Request, SessionKey};
use toolbus_engine::{ConnId, Seq};
use toolbus_journal::{CallKey, JournalState, Maintenance, SyncGroup};
use toolbus_protocol::JournalClaim;
use toolbus_store::sim_disk::SimDisk;

pub struct Host {
    pub name: ByteString,
    /// Hosts of one name have the same number.
    pub number: usize,
    pub folder: Folder,
    /// A copy of the folder, taken while the host was stopped.
    pub older: Option<Folder>,
    /// The disk fails soon, and its machine stops then.
    pub machine_stops: bool,
    pub conn: Option<ConnId>,
    /// The number of the current link.
    pub link: u64,
    /// Messages on this link that another journal may have started.
    pub unsure: BTreeSet<ByteString>,
    /// Absent while the second host of a name is stopped.
    pub process: Option<Process>,
}

#[derive(Clone)]
pub struct Folder {
    pub disk: SimDisk,
    pub id: ByteString,
    /// How often it was opened.
    pub epoch: u64,
    /// The processes that opened it, in order.
    pub instances: Vec<ByteString>,
    /// Bits of its journal flipped.
    pub is_corrupt: bool,
}

pub struct Process {
    pub number: u64,
    pub machine: CallMachine<Outcome>,
    pub journal: JournalState,
    pub sync: Option<SyncGroup>,
    pub maintenance: Option<Maintenance>,
    pub claim: JournalClaim,
    pub phase: Phase,
    pub calls: BTreeMap<CallNo, Call>,
    /// Replies without a receipt, by id.
    pub outbox: BTreeMap<ByteString, Reply>,
    pub callers: Callers,
    /// Cancels of calls that were not here yet.
    pub early_cancels: BTreeSet<ByteString>,
    pub notifications: BTreeSet<NotificationNo>,
    /// Calls of a session that have not been sent, in the order of their arrival.
    pub sessions: BTreeMap<SessionKey, Vec<CallNo>>,
    /// Calls whose RESULT is written and not synced: a machine crash can lose it.
    pub unsynced_ends: Vec<CallKey>,
    /// Those that the current sync makes durable.
    pub syncing_ends: Vec<CallKey>,
    pub is_damaged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Running,
    Draining,
    Shutdown,
}

/// What the process knows of a call to carry out its effects.
pub struct Call {
    pub key: CallKey,
    pub work: Work,
    pub request: Request,
    pub body: Bytes,
    /// The last push of its request.
    pub tag: Option<Tag>,
    /// Effects that are not carried out yet.
    pub queue: VecDeque<Effect<Outcome>>,
    pub is_parked: bool,
    pub run: Option<RunNo>,
    /// The id and the body of the reply in RESULT.
    pub reply: Option<(ByteString, Bytes)>,
    /// It was cancelled by its caller or an operator.
    pub cancelled: bool,
    pub has_left_order: bool,
}

/// A pushed message can be acknowledged by tag only on the link on which it was pushed. Links are numbered here because
/// a restarted broker reuses connection ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub link: u64,
    pub seq: Seq,
}

/// A reply in transit.
#[derive(Debug, Clone)]
pub struct Reply {
    pub key: CallKey,
    pub body: Bytes,
    pub tag: Option<Tag>,
    /// Whether it answers the call, and does not only accept a task.
    pub is_final: bool,
    /// Whether the journal has it. Any other reply is sent only together with the acknowledgement of its request: if the
    /// reply alone became durable, the next process would decide about the request again.
    pub is_journaled: bool,
    /// The link on which it carried the acknowledgement of its request.
    pub acked_on: Option<u64>,
}

impl World {
    pub fn add_host(&mut self, number: usize) {
        let is_second = self.hosts.len() > number;
        let folder = self.new_folder();
        let host = self.hosts.len();
        self.hosts.push(Host {
            name: ByteString::from(format!("host{number}")),
            number,
            folder,
            older: None,
            machine_stops: false,
            conn: None,
            link: 0,
            unsure: BTreeSet::new(),
            process: None,
        });
        if !is_second {
            self.start_process(host);
        }
    }

    pub fn new_folder(&mut self) -> Folder {
        let id = ByteString::from(format!("folder-{}", self.fresh_id()));
        Folder { disk: SimDisk::default(), id, epoch: 0, instances: Vec::new(), is_corrupt: false }
    }

    /// The process of a host; absent if it is stopped.
    pub fn process(&mut self, host: usize) -> Option<&mut Process> {
        self.hosts[host].process.as_mut()
    }

    pub fn call(&mut self, host: usize, call: CallNo) -> Option<&mut Call> {
        self.process(host)?.calls.get_mut(&call)
    }

    /// Feeds an event to the machine and sees to its effects.
    pub fn feed(&mut self, host: usize, event: Event<Outcome>) {
        let effects = self.handle(host, event);
        self.distribute(host, effects.into());
    }

    /// Wakes the machine if it is time.
    pub fn tick_host(&mut self, host: usize) {
        // A wait that begins now may be over at once, but not again and again.
        for _ in 0..4 {
            let next = self.process(host).and_then(|process| process.machine.next_wake());
            if next.is_none_or(|at| at > self.now) {
                return;
            }
            let effects = self.handle(host, Event::Tick);
            self.check_orphans(host, &effects);
            self.distribute(host, effects.into());
        }
        self.oracle.violated("the machine wants to be woken in the past");
    }

    pub fn host_is_connected(&mut self, host: usize, conn: ConnId) {
        self.hosts[host].conn = Some(conn);
        self.hosts[host].link = self.fresh_id();
        self.hosts[host].unsure.clear();
        let Some(process) = self.process(host) else { return };
        let replies: Vec<ByteString> = process.outbox.keys().cloned().collect();
        replies.iter().for_each(|reply_id| self.send_reply(host, reply_id));
        self.ask_again(host);
    }

    pub fn host_link_lost(&mut self, host: usize) {
        self.hosts[host].conn = None;
        if let Some(process) = self.process(host) {
            process.callers.link_lost();
        }
    }
}
