//! A message arrives: duplicate, refused, or taken in and forwarded at once.

use crate::engine::{DeadlineEntry, Delivery};
use crate::ledger::{Known, PendingId};
use crate::message::size_of_sealed;
use crate::unsettled::{Provisional, Stage, Waiter, Waiters};
use crate::{
    ConnId, DEAD_LETTER_SUFFIX, Effects, Engine, Fingerprint, MAX_MAILBOX_NAME_BYTES, Message, Millis, Outgoing,
    PlantedBug, Refusal, Rights, Sender, Seq, fingerprint,
};
use bytestring::ByteString;
use smallvec::smallvec;
use std::sync::Arc;

impl Engine {
    pub(crate) fn deliver(&mut self, now: Millis, conn: ConnId, delivery: Delivery, effects: &mut Effects) {
        let Some(peer) = self.conns.get_mut(&conn) else { return };
        peer.deliveries += 1;
        let about = fingerprint(self.options.fingerprint_seed, &delivery.to, &delivery.id);
        let waiter = Waiter { conn, number: peer.deliveries, id: delivery.id.clone(), about };
        let (sender, rights) = (Arc::clone(&peer.sender), peer.rights);
        let ack = delivery.ack;
        match self.accept(now, (sender.clone(), rights), delivery, waiter.clone(), effects) {
            Ok(seq) => {
                if let Some(settled) = ack {
                    self.fold_ack(now, &sender.name, settled, seq, effects);
                }
            }
            Err(refusal) => effects.send(conn, Outgoing::Refused { refusal, id: Some(waiter.id) }),
        }
    }

    /// Takes a message in, or recognises it, and returns its place. The waiter gets its receipt when it is due.
    fn accept(
        &mut self,
        now: Millis,
        (from, rights): (Arc<Sender>, Rights),
        delivery: Delivery,
        waiter: Waiter,
        effects: &mut Effects,
    ) -> Result<Seq, Refusal> {
        let fingerprint = waiter.about;
        // The same id from another sender is another message.
        let content = delivery.content ^ xxhash_rust::xxh3::xxh3_64(from.name.as_bytes());
        let known = self.ledger.get(&fingerprint);
        let is_same = |known: &Known| {
            let by_sender = known.sender.is_none_or(|sender| sender == self.sender_hash(&from.name));
            known.content == content && by_sender
        };
        if let Some(Known { seq, .. }) = known.filter(is_same) {
            match self.unsettled.get_mut(seq) {
                Some(unsettled) => unsettled.waiters.push(waiter),
                None => self.receipt(waiter, effects),
            }
            return Ok(seq);
        }
        // Before anything is told of a mailbox that may be none of the sender's business.
        self.may_deliver(&from, rights, &delivery)?;
        if known.is_some() {
            return Err(Refusal::IdConflict { id: delivery.id, mailbox: delivery.to });
        }
        let size = size_of_sealed(delivery.sealed.len());
        self.check_admission(&delivery, size)?;

        let index = self.mailbox(&delivery.to);
        let message = Arc::new(Message {
            seq: self.unsettled.end(),
            mailbox: Arc::clone(&self.boxes[index].name),
            from,
            id: delivery.id,
            correlation_id: delivery.correlation_id,
            sealed: delivery.sealed,
            fingerprint,
            content,
            accepted_at: now,
            expires_at: delivery.deadline_ms.map(|ms| now.saturating_add(ms)),
        });
        let waiters = if self.options.planted(PlantedBug::ReceiptBeforeSync) {
            self.receipt(waiter, effects);
            Waiters::new()
        } else {
            smallvec![waiter]
        };
        Ok(self.take_in(now, index, message, waiters, effects))
    }

    fn check_admission(&self, delivery: &Delivery, size: u64) -> Result<(), Refusal> {
        let options = &self.options;
        if self.stopping() {
            return Err(Refusal::ShuttingDown);
        }
        if self.disk_low {
            return Err(Refusal::DiskFull);
        }
        if delivery.deadline_ms == Some(0) {
            return Err(Refusal::Expired { id: delivery.id.clone(), mailbox: delivery.to.clone() });
        }
        if self.total_messages >= options.total_messages || self.total_bytes + size > options.total_bytes {
            return Err(Refusal::BrokerFull { messages: self.total_messages, bytes: self.total_bytes });
        }
        match self.names.get(&*delivery.to) {
            Some(&index) => {
                let mailbox = &self.boxes[index];
                let (messages, bytes) = (mailbox.pending, mailbox.pending_bytes);
                if messages >= options.mailbox_messages || bytes + size > options.mailbox_bytes {
                    return Err(Refusal::MailboxFull { mailbox: delivery.to.clone(), messages, bytes });
                }
            }
            None if self.boxes.len() >= options.mailboxes => {
                return Err(Refusal::TooManyMailboxes { limit: options.mailboxes });
            }
            None => {}
        }
        Ok(())
    }

    /// Enters an admitted message into the books and pushes it if its recipient is live and has room.
    pub(crate) fn take_in(
        &mut self,
        now: Millis,
        index: usize,
        message: Arc<Message>,
        waiters: Waiters,
        effects: &mut Effects,
    ) -> Seq {
        let (seq, size) = (message.seq, message.size());
        let sender = self.sender_hash(&message.from.name);
        let pending = PendingId { seq, content: message.content, sender, size: size as u32 };
        self.ledger.insert_pending(message.fingerprint, pending);
        self.total_messages += 1;
        self.total_bytes += size;
        let mailbox = &mut self.boxes[index];
        if mailbox.pending == 0 {
            mailbox.oldest_hint = now;
        }
        let goes_at_once = mailbox.is_caught_up() && mailbox.has_room(size);
        mailbox.pending += 1;
        mailbox.pending_bytes += size;
        self.note_deadline(&message);
        self.unsettled.push(Arc::clone(&message), waiters, now + self.options.linger);
        if goes_at_once {
            self.push(now, index, &message, effects);
        } else {
            self.boxes[index].waiting.insert(seq);
            self.pump(now, index, effects);
            // Someone who isn't there, or is behind, can't acknowledge in time: no point in waiting for it.
            self.unsettled.hurry();
        }
        seq
    }

    pub(crate) fn note_deadline(&mut self, message: &Message) {
        if let Some(at) = message.expires_at {
            self.deadlines.insert((at, message.seq), DeadlineEntry::of(message));
        }
    }

    /// Moves a message that can't be delivered to `NAME#dead`, in one step on disk. False if another message of the
    /// same id waits there: two can't, so this one stays where it is.
    pub(crate) fn dead_letter(&mut self, now: Millis, index: usize, message: &Message, effects: &mut Effects) -> bool {
        let name = self.dead_letter_name(&message.mailbox);
        let fingerprint = fingerprint(self.options.fingerprint_seed, &name, &message.id);
        let dead_letter = match self.ledger.get(&fingerprint) {
            Some(known) if known.pending && known.content != message.content => return false,
            // It died before and is there already.
            Some(known) if known.pending => known.seq,
            _ => self.take_in_dead_letter(now, &name, fingerprint, message, effects),
        };
        self.hand_over(message.seq, dead_letter);
        let waiters = self.settle(now, index, message.seq, message.fingerprint, Some(dead_letter));
        self.wait_for(dead_letter, waiters, effects);
        true
    }

    /// Names have a limit, and a mailbox that nobody can name can't be read. What would be too long is cut, and told from
    /// others like it by a hash of the whole.
    fn dead_letter_name(&self, mailbox: &str) -> ByteString {
        if mailbox.len() + DEAD_LETTER_SUFFIX.len() <= MAX_MAILBOX_NAME_BYTES {
            return ByteString::from(format!("{mailbox}{DEAD_LETTER_SUFFIX}"));
        }
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(mailbox.as_bytes(), self.options.fingerprint_seed);
        let ending = format!("~{hash:016x}{DEAD_LETTER_SUFFIX}");
        let kept = &mailbox[..mailbox.floor_char_boundary(MAX_MAILBOX_NAME_BYTES - ending.len())];
        ByteString::from(format!("{kept}{ending}"))
    }

    /// A reply that dies before it is safe leaves to its dead letter what it settled.
    fn hand_over(&mut self, dying: Seq, dead_letter: Seq) {
        let Some(reply) = self.unsettled.get_mut(dying) else { return };
        let (stage, settles) = (reply.stage, std::mem::take(&mut reply.settles));
        for provisional in &settles {
            self.ledger.depend_on(&provisional.settled.fingerprint, dead_letter);
        }
        match &mut self.writing {
            Some(writing) if stage == Stage::Writing => writing.handed_over.push((dead_letter, settles)),
            _ => self.ride_on(dead_letter, settles),
        }
    }

    /// Settlements go to disk with that message, or with the next batch if it is safe already.
    pub(crate) fn ride_on(&mut self, message: Seq, settles: Vec<Provisional>) {
        match self.unsettled.get_mut(message) {
            Some(unsettled) => unsettled.settles.extend(settles),
            None => self.open.settled.extend(settles.into_iter().map(|provisional| provisional.settled)),
        }
    }

    fn take_in_dead_letter(
        &mut self,
        now: Millis,
        name: &str,
        fingerprint: Fingerprint,
        message: &Message,
        effects: &mut Effects,
    ) -> Seq {
        let dead = self.mailbox(name);
        let dead_letter = Arc::new(Message {
            seq: self.unsettled.end(),
            mailbox: Arc::clone(&self.boxes[dead].name),
            from: Arc::clone(&message.from),
            id: message.id.clone(),
            correlation_id: message.correlation_id.clone(),
            sealed: message.sealed.clone(),
            fingerprint,
            content: message.content,
            accepted_at: message.accepted_at,
            expires_at: None,
        });
        self.take_in(now, dead, dead_letter, Waiters::new(), effects)
    }
}
