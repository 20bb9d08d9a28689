//! The reference model: a few facts per message and per mailbox that determine what the broker may do next. Every event
//! is applied to the model before the engine's effects are checked. It keeps the first violation.

mod cancels;
mod disk;
mod pushes;
mod receipts;
mod recovery;

pub use disk::DiskModel;
pub use recovery::Recovered;

use super::messages::{MessageNo, SentMessage, Settlement};
use super::scenario::Scenario;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use toolbus_engine::{
    ConnId, DEAD_LETTER_SUFFIX, EngineOptions, Fingerprint, Message, Millis, Refusal, Rights, Seq, fingerprint,
};

pub struct Model {
    pub messages: Vec<SentMessage>,
    names: Vec<ByteString>,
    by_id: HashMap<ByteString, Vec<MessageNo>>,
    by_fingerprint: HashMap<Fingerprint, MessageNo>,
    pub mailboxes: BTreeMap<ByteString, MailboxModel>,
    pub disk: DiskModel,
    deadlines: BTreeSet<(Millis, MessageNo)>,
    /// The highest `order` of each sender among the first pushes to a mailbox.
    newest_pushed: BTreeMap<(usize, ByteString), u64>,
    options: EngineOptions,
    keeps_all_ids: bool,
    dead_lettering: bool,
    /// The latest time so far: a restart may set the clock back.
    pub latest: Millis,
    violation: Option<String>,
}

#[derive(Debug, Default)]
pub struct MailboxModel {
    pub subscriber: Option<ConnId>,
    pub leases: BTreeMap<Seq, MessageNo>,
    leased_bytes: u64,
    /// Dead letters that this subscriber can't decode.
    pub skipped: usize,
    /// Messages pushed on this subscription.
    pushed: BTreeSet<MessageNo>,
}

impl Model {
    pub fn new(scenario: &Scenario, names: Vec<ByteString>) -> Self {
        Self {
            messages: Vec::new(),
            names,
            by_id: HashMap::new(),
            by_fingerprint: HashMap::new(),
            mailboxes: BTreeMap::new(),
            disk: DiskModel::default(),
            deadlines: BTreeSet::new(),
            newest_pushed: BTreeMap::new(),
            options: scenario.engine.clone(),
            keeps_all_ids: scenario.keeps_all_ids,
            dead_lettering: scenario.dead_lettering(),
            latest: 0,
            violation: None,
        }
    }

    pub fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert_with(|| what.into());
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn describe(&self, no: MessageNo) -> String {
        let sent = &self.messages[no];
        format!("message {no} ('{}' to '{}')", sent.id, sent.mailbox)
    }

    pub fn add(&mut self, sent: SentMessage) -> MessageNo {
        let no = self.messages.len();
        let (id, mailbox) = (sent.id.clone(), sent.mailbox.clone());
        self.messages.push(sent);
        self.name(no, mailbox, id);
        no
    }

    /// Changes the id of a message.
    pub fn name(&mut self, no: MessageNo, mailbox: ByteString, id: ByteString) {
        self.by_fingerprint.insert(fingerprint(self.options.fingerprint_seed, &mailbox, &id), no);
        self.messages[no].id = id.clone();
        self.by_id.entry(id).or_default().push(no);
    }

    pub fn find(&self, mailbox: &str, id: &str) -> Option<MessageNo> {
        self.by_id.get(id)?.iter().copied().find(|no| self.messages[*no].mailbox == mailbox)
    }

    /// Whether the broker must recognise the id. It may have evicted a settled id, and a message may have been
    /// dead-lettered without an event that the model observes.
    pub fn is_certainly_known(&self, no: MessageNo) -> bool {
        let sent = &self.messages[no];
        sent.known && (self.keeps_all_ids || (sent.settled.is_none() && !self.dead_lettering))
    }

    /// Whether the message can certainly still be answered or cancelled.
    pub fn is_certainly_open(&self, no: MessageNo) -> bool {
        let sent = &self.messages[no];
        // It may have been dead-lettered unobserved.
        sent.pending() && self.is_certainly_known(no) && !self.dead_lettering && !sent.expired(self.latest)
    }

    pub fn mailbox(&mut self, name: &str) -> &mut MailboxModel {
        if !self.mailboxes.contains_key(name) {
            self.mailboxes.insert(ByteString::from(name), MailboxModel::default());
        }
        self.mailboxes.get_mut(name).expect("the mailbox was just inserted")
    }

    /// The broker did not refuse a deliver.
    pub fn accepted(&mut self, now: Millis, no: MessageNo) {
        if !self.messages[no].known {
            self.begin_incarnation(now, no);
        } else if !self.is_certainly_known(no) {
            self.messages[no].accepted_at.push(now);
        }
    }

    fn begin_incarnation(&mut self, accepted_at: Millis, no: MessageNo) {
        self.end_lease(no);
        self.may_be_pushed_again(no);
        let sent = &mut self.messages[no];
        sent.known = true;
        sent.settled = None;
        sent.cancelled_in_flight = false;
        sent.pushed_since_accepted = false;
        sent.withdrawn = false;
        sent.incarnations += 1;
        sent.incarnation_start = accepted_at;
        sent.accepted_at.push(accepted_at);
        sent.expires_at = sent.deadline_ms.map(|ms| accepted_at + ms);
        sent.seq = None;
        sent.record_durable = false;
        sent.settlement_durable = false;
        sent.receipted = false;
        sent.confirmed = false;
        self.deadlines.extend(sent.expires_at.map(|at| (at, no)));
    }

    /// The broker refused a deliver immediately. It must not refuse a message that it already knows, except as expired.
    pub fn refused(&mut self, no: MessageNo, refusal: &Refusal) {
        let sent = &self.messages[no];
        let (options, size) = (&self.options, sent.size());
        let justified = match refusal {
            Refusal::MailboxFull { messages, bytes, .. } => {
                *messages >= options.mailbox_messages || bytes + size > options.mailbox_bytes
            }
            Refusal::BrokerFull { messages, bytes } => {
                // Some peers may not use the reserve.
                let usable = |limit: u64| Rights::WORKER.usable(limit);
                *messages >= usable(options.total_messages) || bytes + size > usable(options.total_bytes)
            }
            // An agent that stores nothing may always add a message.
            Refusal::ShareFull { messages, .. } => *messages > 0,
            Refusal::MailboxShareFull { mailboxes } => *mailboxes > 0,
            Refusal::Expired { .. } => sent.deadline_ms.is_some(),
            Refusal::DiskFull | Refusal::TooManyMailboxes { .. } => true,
            Refusal::NotYourRequest { .. } => sent.answers.is_some_and(|request| !self.is_certainly_open(request)),
            _ => false,
        };
        let expired = matches!(refusal, Refusal::Expired { .. });
        if !justified || (self.is_certainly_known(no) && !expired) {
            self.violated(format!("{} was refused without reason: {refusal}", self.describe(no)));
        }
        self.messages[no].order_lost = true;
    }

    pub fn acked(&mut self, no: MessageNo) {
        let sent = &self.messages[no];
        if sent.pending() || matches!(sent.settled, Some(Settlement::Answered(_) | Settlement::DeadLettered(_))) {
            self.settle(no, Settlement::Acked);
        }
    }

    /// Settled by a reply or, if that reply is a retransmission and was itself answered, by the last reply of the
    /// chain.
    pub fn answered(&mut self, no: MessageNo, mut reply: MessageNo) {
        while let Some(Settlement::Answered(next) | Settlement::DeadLettered(next)) = self.messages[reply].settled {
            reply = next;
        }
        self.settle(no, Settlement::Answered(reply));
    }

    pub fn settle(&mut self, no: MessageNo, how: Settlement) {
        self.end_lease(no);
        let sent = &mut self.messages[no];
        sent.known = true;
        sent.settled = Some(how);
        sent.cancelled_in_flight = false;
        sent.cancelled_once |= how == Settlement::Cancelled;
        if matches!(how, Settlement::DeadLettered(_)) {
            return;
        }
        // Once a reply is consumed, its request no longer depends on it.
        for sent in &mut self.messages {
            if matches!(sent.settled, Some(Settlement::Answered(by) | Settlement::DeadLettered(by)) if by == no) {
                sent.settled = Some(Settlement::Acked);
            }
        }
    }

    fn end_lease(&mut self, no: MessageNo) {
        let sent = &self.messages[no];
        let (size, seq) = (sent.size(), sent.seq);
        if let Some(mailbox) = self.mailboxes.get_mut(&sent.mailbox)
            && let Some(seq) = seq
            && mailbox.leases.remove(&seq).is_some()
        {
            mailbox.leased_bytes -= size;
        }
    }

    /// The engine's clock advanced.
    pub fn tick(&mut self, now: Millis) {
        while let Some((at, no)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, no));
            if self.messages[no].pending() && self.messages[no].expires_at == Some(at) {
                self.settle(no, Settlement::Expired);
            }
        }
    }

    pub fn subscribed(&mut self, name: &str, conn: ConnId) {
        self.replace_subscription(name, MailboxModel { subscriber: Some(conn), ..MailboxModel::default() });
    }

    pub fn unsubscribed(&mut self, name: &str, conn: ConnId) {
        if self.mailbox(name).subscriber == Some(conn) {
            self.replace_subscription(name, MailboxModel::default());
        }
    }

    /// Identifies a message that the broker wrote or pushed. It must be unchanged and accepted only once.
    fn observe(&mut self, message: &Message) -> Option<MessageNo> {
        let found = match message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            true => self.observe_dead_letter(message),
            false => self.find(&message.mailbox, &message.id),
        };
        let Some(no) = found else {
            self.violated(format!("'{}' to '{}' was never sent", message.id, message.mailbox));
            return None;
        };
        let sent = &self.messages[no];
        let ended = sent.settled.is_some() || sent.seq.is_some();
        let another = ended && !self.is_certainly_known(no) && sent.seq != Some(message.seq);
        if (sent.known && another) || (!sent.known && !self.has_one_incarnation(no)) {
            self.begin_incarnation(message.accepted_at, no);
        }
        let sent = &self.messages[no];
        let times = sent.origin.map_or(&sent.accepted_at, |origin| &self.messages[origin].accepted_at);
        let same = sent.sealed == message.sealed
            && sent.correlation_id == message.correlation_id
            && *self.names[sent.from] == *message.from.name
            && message.expires_at == sent.deadline_ms.map(|ms| message.accepted_at + ms);
        let once = sent.seq.is_none_or(|seq| seq == message.seq) && times.contains(&message.accepted_at);
        if !sent.known {
            self.violated(format!("{} exists although it was never accepted", self.describe(no)));
        } else if !same {
            self.violated(format!("{} was changed", self.describe(no)));
        } else if !once {
            self.violated(format!("{} was accepted twice", self.describe(no)));
        }
        self.messages[no].seq = Some(message.seq);
        Some(no)
    }

    /// A message is observed in a dead-letter mailbox.
    fn observe_dead_letter(&mut self, message: &Message) -> Option<MessageNo> {
        let origin = self.find(message.mailbox.strip_suffix(DEAD_LETTER_SUFFIX)?, &message.id)?;
        // The earlier dead letter of this message may have been acknowledged, expired or refused since.
        let fresh = self.messages[origin].dead_copy.is_none_or(|copy| {
            let copy = &self.messages[copy];
            !copy.pending() && copy.seq != Some(message.seq)
        });
        if fresh {
            self.dead_lettered(origin, message.accepted_at);
        }
        self.messages[origin].dead_copy
    }

    /// A message was dead-lettered, now or earlier.
    pub fn dead_lettered(&mut self, origin: MessageNo, accepted_at: Millis) {
        let copy = match self.messages[origin].dead_copy {
            Some(copy) => copy,
            None => self.add_dead_copy(origin),
        };
        if !self.messages[copy].pending() {
            self.begin_incarnation(accepted_at, copy);
        }
        // If ids are evicted, the message may have been accepted again.
        let same_incarnation = self.keeps_all_ids || self.messages[origin].incarnation_start == accepted_at;
        if self.messages[origin].settled.is_none() && same_incarnation {
            self.settle(origin, Settlement::DeadLettered(copy));
        }
    }

    fn add_dead_copy(&mut self, origin: MessageNo) -> MessageNo {
        let sent = &self.messages[origin];
        let mailbox = ByteString::from(format!("{}{DEAD_LETTER_SUFFIX}", sent.mailbox));
        let mut copy = SentMessage::new(sent.from, mailbox, sent.id.clone(), sent.sealed.clone());
        copy.correlation_id = sent.correlation_id.clone();
        copy.origin = Some(origin);
        let copy = self.add(copy);
        self.messages[origin].dead_copy = Some(copy);
        copy
    }
}
