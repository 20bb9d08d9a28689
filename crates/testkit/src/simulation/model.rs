//! The reference model: a few facts per message and per mailbox, from which follows what the broker may do next. It hears
//! of every event before the effects do, and keeps the first violation it sees.

mod cancels;
mod disk;
mod pushes;
mod receipts;
mod recovery;

pub use disk::DiskModel;
pub use recovery::Recovered;

use super::scenario::Scenario;
use super::sent::{How, MessageNo, SentMessage};
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use toolbus_engine::{
    ConnId, DEAD_LETTER_SUFFIX, EngineOptions, Fingerprint, Message, Millis, Refusal, Seq, fingerprint,
};

pub struct Model {
    pub sent: Vec<SentMessage>,
    names: Vec<ByteString>,
    by_id: HashMap<ByteString, Vec<MessageNo>>,
    by_fingerprint: HashMap<Fingerprint, MessageNo>,
    pub mailboxes: BTreeMap<ByteString, MailboxModel>,
    pub disk: DiskModel,
    deadlines: BTreeSet<(Millis, MessageNo)>,
    /// The latest message of a sender that a mailbox got for the first time.
    newest_pushed: BTreeMap<(usize, ByteString), u64>,
    options: EngineOptions,
    long_memory: bool,
    deaths: bool,
    /// The latest time there ever was: a restart may set the clock back a little.
    pub latest: Millis,
    violation: Option<String>,
}

#[derive(Debug, Default)]
pub struct MailboxModel {
    pub subscriber: Option<ConnId>,
    pub leases: BTreeMap<Seq, MessageNo>,
    leased_bytes: u64,
    /// Letters that this subscriber can't be shown.
    pub skipped: usize,
    /// On this subscription.
    pushed: BTreeSet<MessageNo>,
}

impl Model {
    pub fn new(scenario: &Scenario, names: Vec<ByteString>) -> Self {
        Self {
            sent: Vec::new(),
            names,
            by_id: HashMap::new(),
            by_fingerprint: HashMap::new(),
            mailboxes: BTreeMap::new(),
            disk: DiskModel::default(),
            deadlines: BTreeSet::new(),
            newest_pushed: BTreeMap::new(),
            options: scenario.engine.clone(),
            long_memory: scenario.long_memory,
            deaths: scenario.deaths(),
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
        let sent_message = &self.sent[no];
        format!("sent_message {no} ('{}' to '{}')", sent_message.id, sent_message.mailbox)
    }

    pub fn add(&mut self, sent_message: SentMessage) -> MessageNo {
        let no = self.sent.len();
        let (id, mailbox) = (sent_message.id.clone(), sent_message.mailbox.clone());
        self.sent.push(sent_message);
        self.name(no, mailbox, id);
        no
    }

    /// From now on the message goes by this id.
    pub fn name(&mut self, no: MessageNo, mailbox: ByteString, id: ByteString) {
        self.by_fingerprint.insert(fingerprint(self.options.fingerprint_seed, &mailbox, &id), no);
        self.sent[no].id = id.clone();
        self.by_id.entry(id).or_default().push(no);
    }

    pub fn find(&self, mailbox: &str, id: &str) -> Option<MessageNo> {
        self.by_id.get(id)?.iter().copied().find(|no| self.sent[*no].mailbox == mailbox)
    }

    /// Whether the broker is certain to recognise the id. A short memory forgets what is settled, and a message can die
    /// unseen.
    pub fn is_certainly_known(&self, no: MessageNo) -> bool {
        let sent_message = &self.sent[no];
        sent_message.known && (self.long_memory || (sent_message.settled.is_none() && !self.deaths))
    }

    /// Whether it can certainly still be answered, or taken back.
    pub fn is_surely_open(&self, no: MessageNo) -> bool {
        let sent_message = &self.sent[no];
        // A message can die unseen.
        sent_message.pending() && self.is_certainly_known(no) && !self.deaths && !sent_message.expired(self.latest)
    }

    pub fn mailbox(&mut self, name: &str) -> &mut MailboxModel {
        if !self.mailboxes.contains_key(name) {
            self.mailboxes.insert(ByteString::from(name), MailboxModel::default());
        }
        self.mailboxes.get_mut(name).expect("it was just made")
    }

    /// A deliver that was not refused.
    pub fn taken_in(&mut self, now: Millis, no: MessageNo) {
        if !self.sent[no].known {
            self.begin_life(now, no);
        } else if !self.is_certainly_known(no) {
            self.sent[no].accepted_at.push(now);
        }
    }

    fn begin_life(&mut self, accepted_at: Millis, no: MessageNo) {
        self.end_lease(no);
        self.may_be_pushed_again(no);
        let sent_message = &mut self.sent[no];
        sent_message.known = true;
        sent_message.settled = None;
        sent_message.taken_back = false;
        sent_message.lives += 1;
        sent_message.born = accepted_at;
        sent_message.accepted_at.push(accepted_at);
        sent_message.expires_at = sent_message.deadline_ms.map(|ms| accepted_at + ms);
        sent_message.seq = None;
        sent_message.record_durable = false;
        sent_message.settlement_durable = false;
        sent_message.receipted = false;
        sent_message.confirmed = false;
        self.deadlines.extend(sent_message.expires_at.map(|at| (at, no)));
    }

    /// A deliver that was refused at once. What the broker knows already it must not refuse.
    pub fn refused(&mut self, no: MessageNo, refusal: &Refusal) {
        let sent_message = &self.sent[no];
        let (options, size) = (&self.options, sent_message.size());
        let just = match refusal {
            Refusal::MailboxFull { messages, bytes, .. } => {
                *messages >= options.mailbox_messages || bytes + size > options.mailbox_bytes
            }
            Refusal::BrokerFull { messages, bytes } => {
                *messages >= options.total_messages || bytes + size > options.total_bytes
            }
            Refusal::Expired { .. } => sent_message.deadline_ms.is_some(),
            Refusal::DiskFull | Refusal::TooManyMailboxes { .. } => true,
            Refusal::NotYourRequest { .. } => sent_message.answers.is_some_and(|request| !self.is_surely_open(request)),
            _ => false,
        };
        let expired = matches!(refusal, Refusal::Expired { .. });
        if !just || (self.is_certainly_known(no) && !expired) {
            self.violated(format!("{} was refused without reason: {refusal}", self.describe(no)));
        }
        self.sent[no].lost_its_place = true;
    }

    pub fn acked(&mut self, no: MessageNo) {
        let sent_message = &self.sent[no];
        if sent_message.pending() || matches!(sent_message.settled, Some(How::Answered(_) | How::Dead(_))) {
            self.settle(no, How::Acked);
        }
    }

    /// Settled by a reply, or, if that is sent again after it was answered itself, by what answered it.
    pub fn answered(&mut self, no: MessageNo, mut reply: MessageNo) {
        while let Some(How::Answered(next) | How::Dead(next)) = self.sent[reply].settled {
            reply = next;
        }
        self.settle(no, How::Answered(reply));
    }

    pub fn settle(&mut self, no: MessageNo, how: How) {
        self.end_lease(no);
        let sent_message = &mut self.sent[no];
        sent_message.known = true;
        sent_message.settled = Some(how);
        sent_message.taken_back = false;
        sent_message.cancelled_once |= how == How::Cancelled;
        if matches!(how, How::Dead(_)) {
            return;
        }
        // Whoever consumed a reply has no more use for the request.
        for sent_message in &mut self.sent {
            if matches!(sent_message.settled, Some(How::Answered(by) | How::Dead(by)) if by == no) {
                sent_message.settled = Some(How::Acked);
            }
        }
    }

    fn end_lease(&mut self, no: MessageNo) {
        let sent_message = &self.sent[no];
        let (size, seq) = (sent_message.size(), sent_message.seq);
        if let Some(mailbox) = self.mailboxes.get_mut(&sent_message.mailbox)
            && let Some(seq) = seq
            && mailbox.leases.remove(&seq).is_some()
        {
            mailbox.leased_bytes -= size;
        }
    }

    /// The engine was told the time.
    pub fn tick(&mut self, now: Millis) {
        while let Some((at, no)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, no));
            if self.sent[no].pending() && self.sent[no].expires_at == Some(at) {
                self.settle(no, How::Expired);
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

    /// The message of a message that the broker wrote or pushed. It must be as it was sent, and must be the only one.
    fn witness(&mut self, message: &Message) -> Option<MessageNo> {
        let found = match message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            true => self.witness_dead(message),
            false => self.find(&message.mailbox, &message.id),
        };
        let Some(no) = found else {
            self.violated(format!("nobody ever sent '{}' to '{}'", message.id, message.mailbox));
            return None;
        };
        let sent_message = &self.sent[no];
        let ended = sent_message.settled.is_some() || sent_message.seq.is_some();
        let another = ended && !self.is_certainly_known(no) && sent_message.seq != Some(message.seq);
        if (sent_message.known && another) || (!sent_message.known && !self.has_one_life(no)) {
            self.begin_life(message.accepted_at, no);
        }
        let sent_message = &self.sent[no];
        let times = sent_message.origin.map_or(&sent_message.accepted_at, |origin| &self.sent[origin].accepted_at);
        let same = sent_message.sealed == message.sealed
            && sent_message.correlation_id == message.correlation_id
            && *self.names[sent_message.from] == *message.from.name
            && message.expires_at == sent_message.deadline_ms.map(|ms| message.accepted_at + ms);
        let once = sent_message.seq.is_none_or(|seq| seq == message.seq) && times.contains(&message.accepted_at);
        if !sent_message.known {
            self.violated(format!("{} is there although it was never accepted", self.describe(no)));
        } else if !same {
            self.violated(format!("{} changed on the way", self.describe(no)));
        } else if !once {
            self.violated(format!("{} was taken in twice", self.describe(no)));
        }
        self.sent[no].seq = Some(message.seq);
        Some(no)
    }

    /// A message shows up among the dead letters.
    fn witness_dead(&mut self, message: &Message) -> Option<MessageNo> {
        let origin = self.find(message.mailbox.strip_suffix(DEAD_LETTER_SUFFIX)?, &message.id)?;
        // It may have died some time ago, and have been acknowledged, expired or refused in the eyes of others since.
        let fresh = self.sent[origin].dead_copy.is_none_or(|copy| {
            let copy = &self.sent[copy];
            !copy.pending() && copy.seq != Some(message.seq)
        });
        if fresh {
            self.died(origin, message.accepted_at);
        }
        self.sent[origin].dead_copy
    }

    /// A message was moved to the dead letters, or is there already.
    pub fn died(&mut self, origin: MessageNo, accepted_at: Millis) {
        let copy = match self.sent[origin].dead_copy {
            Some(copy) => copy,
            None => self.add_dead_copy(origin),
        };
        if !self.sent[copy].pending() {
            self.begin_life(accepted_at, copy);
        }
        // With a short memory it may live again by now.
        let same_life = self.long_memory || self.sent[origin].born == accepted_at;
        if self.sent[origin].settled.is_none() && same_life {
            self.settle(origin, How::Dead(copy));
        }
    }

    fn add_dead_copy(&mut self, origin: MessageNo) -> MessageNo {
        let sent_message = &self.sent[origin];
        let mailbox = ByteString::from(format!("{}{DEAD_LETTER_SUFFIX}", sent_message.mailbox));
        let mut copy =
            SentMessage::new(sent_message.from, mailbox, sent_message.id.clone(), sent_message.sealed.clone());
        copy.correlation_id = sent_message.correlation_id.clone();
        copy.origin = Some(origin);
        let copy = self.add(copy);
        self.sent[origin].dead_copy = Some(copy);
        copy
    }
}
