//! The reference model: a few facts per letter and per mailbox, from which follows what the broker may do next. It hears
//! of every event before the effects do, and keeps the first violation it sees.

mod cancels;
mod disk;
mod pushes;
mod receipts;
mod recovery;

pub use disk::DiskModel;
pub use recovery::Recovered;

use super::letters::{How, Letter, LetterNo};
use super::scenario::Scenario;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use toolbus_engine::{
    ConnId, DEAD_LETTER_SUFFIX, EngineOptions, Fingerprint, Message, Millis, Refusal, Seq, fingerprint,
};

pub struct Model {
    pub letters: Vec<Letter>,
    names: Vec<ByteString>,
    by_id: HashMap<ByteString, Vec<LetterNo>>,
    by_fingerprint: HashMap<Fingerprint, LetterNo>,
    pub mailboxes: BTreeMap<ByteString, MailboxModel>,
    pub disk: DiskModel,
    deadlines: BTreeSet<(Millis, LetterNo)>,
    /// The latest letter of a sender that a mailbox got for the first time.
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
    pub leases: BTreeMap<Seq, LetterNo>,
    leased_bytes: u64,
    /// Letters that this subscriber can't be shown.
    pub skipped: usize,
    /// On this subscription.
    pushed: BTreeSet<LetterNo>,
}

impl Model {
    pub fn new(scenario: &Scenario, names: Vec<ByteString>) -> Self {
        Self {
            letters: Vec::new(),
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

    pub fn describe(&self, no: LetterNo) -> String {
        let letter = &self.letters[no];
        format!("letter {no} ('{}' to '{}')", letter.id, letter.mailbox)
    }

    pub fn add(&mut self, letter: Letter) -> LetterNo {
        let no = self.letters.len();
        let (id, mailbox) = (letter.id.clone(), letter.mailbox.clone());
        self.letters.push(letter);
        self.name(no, mailbox, id);
        no
    }

    /// From now on the letter goes by this id.
    pub fn name(&mut self, no: LetterNo, mailbox: ByteString, id: ByteString) {
        self.by_fingerprint.insert(fingerprint(self.options.fingerprint_seed, &mailbox, &id), no);
        self.letters[no].id = id.clone();
        self.by_id.entry(id).or_default().push(no);
    }

    pub fn find(&self, mailbox: &str, id: &str) -> Option<LetterNo> {
        self.by_id.get(id)?.iter().copied().find(|no| self.letters[*no].mailbox == mailbox)
    }

    /// Whether the broker is certain to recognise the id. A short memory forgets what is settled, and a letter can die
    /// unseen.
    pub fn is_certainly_known(&self, no: LetterNo) -> bool {
        let letter = &self.letters[no];
        letter.known && (self.long_memory || (letter.settled.is_none() && !self.deaths))
    }

    /// Whether it can certainly still be answered, or taken back.
    pub fn is_surely_open(&self, no: LetterNo) -> bool {
        let letter = &self.letters[no];
        // A letter can die unseen.
        letter.pending() && self.is_certainly_known(no) && !self.deaths && !letter.expired(self.latest)
    }

    pub fn mailbox(&mut self, name: &str) -> &mut MailboxModel {
        if !self.mailboxes.contains_key(name) {
            self.mailboxes.insert(ByteString::from(name), MailboxModel::default());
        }
        self.mailboxes.get_mut(name).expect("it was just made")
    }

    /// A deliver that was not refused.
    pub fn taken_in(&mut self, now: Millis, no: LetterNo) {
        if !self.letters[no].known {
            self.begin_life(now, no);
        } else if !self.is_certainly_known(no) {
            self.letters[no].accepted_at.push(now);
        }
    }

    fn begin_life(&mut self, accepted_at: Millis, no: LetterNo) {
        self.end_lease(no);
        self.may_be_pushed_again(no);
        let letter = &mut self.letters[no];
        letter.known = true;
        letter.settled = None;
        letter.taken_back = false;
        letter.lives += 1;
        letter.born = accepted_at;
        letter.accepted_at.push(accepted_at);
        letter.expires_at = letter.deadline_ms.map(|ms| accepted_at + ms);
        letter.seq = None;
        letter.record_durable = false;
        letter.settlement_durable = false;
        letter.receipted = false;
        letter.confirmed = false;
        self.deadlines.extend(letter.expires_at.map(|at| (at, no)));
    }

    /// A deliver that was refused at once. What the broker knows already it must not refuse.
    pub fn refused(&mut self, no: LetterNo, refusal: &Refusal) {
        let letter = &self.letters[no];
        let (options, size) = (&self.options, letter.size());
        let just = match refusal {
            Refusal::MailboxFull { messages, bytes, .. } => {
                *messages >= options.mailbox_messages || bytes + size > options.mailbox_bytes
            }
            Refusal::BrokerFull { messages, bytes } => {
                *messages >= options.total_messages || bytes + size > options.total_bytes
            }
            Refusal::Expired { .. } => letter.deadline_ms.is_some(),
            Refusal::DiskFull | Refusal::TooManyMailboxes { .. } => true,
            Refusal::NotYourRequest { .. } => letter.answers.is_some_and(|request| !self.is_surely_open(request)),
            _ => false,
        };
        let expired = matches!(refusal, Refusal::Expired { .. });
        if !just || (self.is_certainly_known(no) && !expired) {
            self.violated(format!("{} was refused without reason: {refusal}", self.describe(no)));
        }
        self.letters[no].lost_its_place = true;
    }

    pub fn acked(&mut self, no: LetterNo) {
        let letter = &self.letters[no];
        if letter.pending() || matches!(letter.settled, Some(How::Answered(_) | How::Dead(_))) {
            self.settle(no, How::Acked);
        }
    }

    /// Settled by a reply, or, if that is sent again after it was answered itself, by what answered it.
    pub fn answered(&mut self, no: LetterNo, mut reply: LetterNo) {
        while let Some(How::Answered(next) | How::Dead(next)) = self.letters[reply].settled {
            reply = next;
        }
        self.settle(no, How::Answered(reply));
    }

    pub fn settle(&mut self, no: LetterNo, how: How) {
        self.end_lease(no);
        let letter = &mut self.letters[no];
        letter.known = true;
        letter.settled = Some(how);
        letter.taken_back = false;
        letter.cancelled_once |= how == How::Cancelled;
        if matches!(how, How::Dead(_)) {
            return;
        }
        // Whoever consumed a reply has no more use for the request.
        for letter in &mut self.letters {
            if matches!(letter.settled, Some(How::Answered(by) | How::Dead(by)) if by == no) {
                letter.settled = Some(How::Acked);
            }
        }
    }

    fn end_lease(&mut self, no: LetterNo) {
        let letter = &self.letters[no];
        let (size, seq) = (letter.size(), letter.seq);
        if let Some(mailbox) = self.mailboxes.get_mut(&letter.mailbox)
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
            if self.letters[no].pending() && self.letters[no].expires_at == Some(at) {
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

    /// The letter of a message that the broker wrote or pushed. It must be as it was sent, and must be the only one.
    fn witness(&mut self, message: &Message) -> Option<LetterNo> {
        let found = match message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            true => self.witness_dead(message),
            false => self.find(&message.mailbox, &message.id),
        };
        let Some(no) = found else {
            self.violated(format!("nobody ever sent '{}' to '{}'", message.id, message.mailbox));
            return None;
        };
        let letter = &self.letters[no];
        let ended = letter.settled.is_some() || letter.seq.is_some();
        let another = ended && !self.is_certainly_known(no) && letter.seq != Some(message.seq);
        if (letter.known && another) || (!letter.known && !self.has_one_life(no)) {
            self.begin_life(message.accepted_at, no);
        }
        let letter = &self.letters[no];
        let times = letter.origin.map_or(&letter.accepted_at, |origin| &self.letters[origin].accepted_at);
        let same = letter.sealed == message.sealed
            && letter.correlation_id == message.correlation_id
            && *self.names[letter.from] == *message.from.name
            && message.expires_at == letter.deadline_ms.map(|ms| message.accepted_at + ms);
        let once = letter.seq.is_none_or(|seq| seq == message.seq) && times.contains(&message.accepted_at);
        if !letter.known {
            self.violated(format!("{} is there although it was never accepted", self.describe(no)));
        } else if !same {
            self.violated(format!("{} changed on the way", self.describe(no)));
        } else if !once {
            self.violated(format!("{} was taken in twice", self.describe(no)));
        }
        self.letters[no].seq = Some(message.seq);
        Some(no)
    }

    /// A message shows up among the dead letters.
    fn witness_dead(&mut self, message: &Message) -> Option<LetterNo> {
        let origin = self.find(message.mailbox.strip_suffix(DEAD_LETTER_SUFFIX)?, &message.id)?;
        // It may have died some time ago, and have been acknowledged, expired or refused in the eyes of others since.
        let fresh = self.letters[origin].dead_copy.is_none_or(|copy| {
            let copy = &self.letters[copy];
            !copy.pending() && copy.seq != Some(message.seq)
        });
        if fresh {
            self.died(origin, message.accepted_at);
        }
        self.letters[origin].dead_copy
    }

    /// A letter was moved to the dead letters, or is there already.
    pub fn died(&mut self, origin: LetterNo, accepted_at: Millis) {
        let copy = match self.letters[origin].dead_copy {
            Some(copy) => copy,
            None => self.add_dead_copy(origin),
        };
        if !self.letters[copy].pending() {
            self.begin_life(accepted_at, copy);
        }
        // With a short memory it may live again by now.
        let same_life = self.long_memory || self.letters[origin].born == accepted_at;
        if self.letters[origin].settled.is_none() && same_life {
            self.settle(origin, How::Dead(copy));
        }
    }

    fn add_dead_copy(&mut self, origin: LetterNo) -> LetterNo {
        let letter = &self.letters[origin];
        let mailbox = ByteString::from(format!("{}{DEAD_LETTER_SUFFIX}", letter.mailbox));
        let mut copy = Letter::new(letter.from, mailbox, letter.id.clone(), letter.sealed.clone());
        copy.correlation_id = letter.correlation_id.clone();
        copy.origin = Some(origin);
        let copy = self.add(copy);
        self.letters[origin].dead_copy = Some(copy);
        copy
    }
}
