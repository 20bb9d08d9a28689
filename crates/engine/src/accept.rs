//! Acceptance of a delivered message: deduplication, authorisation, limits, and an immediate push where possible.

use crate::engine::DeadlineEntry;
use crate::ledger::{KnownId, Payer, PendingId};
use crate::message::size_of_sealed;
use crate::totals::{Charge, Storing};
use crate::unsettled::{Provisional, Stage, Waiter, Waiters};
use crate::{
    ConnId, DEAD_LETTER_SUFFIX, Delivery, Effects, Engine, Fingerprint, MAX_MAILBOX_NAME_BYTES, Message, Millis,
    Outgoing, PlantedBug, Purpose, Refusal, Rights, Sender, Seq, Share, fingerprint,
};
use bytestring::ByteString;
use smallvec::smallvec;
use std::sync::Arc;

/// A repeated message counts as sent earlier by this time: its sender states the age when it has connected, which may be
/// a little before the engine knows of the connection.
const AGE_MARGIN: Millis = 10_000;
/// Longer ages are cut, so that no peer can make its messages look decades old.
const MAX_AGE: Millis = 24 * 3600 * 1000;

impl Engine {
    pub(crate) fn deliver(&mut self, now: Millis, conn: ConnId, delivery: Delivery, effects: &mut Effects) {
        let Some(peer) = self.conns.get_mut(&conn) else { return };
        peer.deliveries += 1;
        let fingerprint = fingerprint(self.options.fingerprint_seed, &delivery.to, &delivery.id);
        let waiter = Waiter { conn, number: peer.deliveries, id: delivery.id.clone(), fingerprint };
        let (sender, rights, connected_at) = (Arc::clone(&peer.sender), peer.rights, peer.connected_at);
        let ack = delivery.ack;
        match self.accept(now, (sender.clone(), rights, connected_at), delivery, waiter.clone(), effects) {
            Ok(seq) => {
                if let Some(settled) = ack {
                    self.fold_ack(now, &sender.name, settled, seq, effects);
                }
            }
            Err(refusal) => effects.send(conn, Outgoing::Refused { refusal, id: Some(waiter.id) }),
        }
    }

    /// Accepts a message, or recognises a duplicate, and returns its sequence number. The waiter's receipt is sent when
    /// the message is durable or settled.
    fn accept(
        &mut self,
        now: Millis,
        (from, rights, connected_at): (Arc<Sender>, Rights, Millis),
        delivery: Delivery,
        waiter: Waiter,
        effects: &mut Effects,
    ) -> Result<Seq, Refusal> {
        let fingerprint = waiter.fingerprint;
        // The same id from another sender is another message, and thus an id conflict.
        let content = delivery.content ^ xxhash_rust::xxh3::xxh3_64(from.name.as_bytes());
        let known = self.ledger.get(&fingerprint);
        let is_same = |known: &KnownId| {
            let by_sender = known.sender.is_none_or(|sender| sender == self.sender_hash(&from.name));
            known.content == content && by_sender
        };
        if let Some(KnownId { seq, .. }) = known.filter(is_same) {
            match self.unsettled.get_mut(seq) {
                Some(unsettled) => unsettled.waiters.push(waiter),
                None => self.receipt(waiter, effects),
            }
            return Ok(seq);
        }
        // Checked before the id conflict, so that a refusal does not reveal ids in a mailbox that the sender may not
        // write to.
        self.may_deliver(&from, rights, &delivery)?;
        if known.is_some() {
            return Err(Refusal::IdConflict { id: delivery.id, mailbox: delivery.to });
        }
        let charge = Charge {
            sender: self.sender_key(&from.name),
            payer: self.payer(&from, &delivery),
            owner: self.owner_key(&delivery.to),
            size: size_of_sealed(delivery.sealed.len()),
        };
        self.check_admission(&delivery, &from, rights, charge)?;

        let index = self.mailbox_paid_by(&delivery.to, charge.agent());
        let age = delivery.age_ms.filter(|_| !self.options.planted(PlantedBug::RepetitionTakenForNew));
        if age.is_some() {
            // An earlier process of the broker may have pushed it and crashed before it was written.
            self.boxes[index].attempts.insert(self.unsettled.end(), 0);
        }
        let message = Arc::new(Message {
            seq: self.unsettled.end(),
            mailbox: Arc::clone(&self.boxes[index].name),
            from,
            id: delivery.id,
            correlation_id: delivery.correlation_id,
            sealed: delivery.sealed,
            fingerprint,
            content,
            accepted_at: age.map_or(now, |age| connected_at.min(now).saturating_sub(age.min(MAX_AGE) + AGE_MARGIN)),
            expires_at: delivery.deadline_ms.map(|ms| now.saturating_add(ms)),
        });
        let waiters = if self.options.planted(PlantedBug::ReceiptBeforeSync) {
            self.receipt(waiter, effects);
            Waiters::new()
        } else {
            smallvec![waiter]
        };
        Ok(self.enqueue(now, index, message, charge.payer, waiters, effects))
    }

    /// A reply that settles its request uses the share of the agent that asked, which gets one for each request. Anything
    /// else uses the share of its sender, so that no agent can use up the share of another one.
    fn payer(&self, from: &Sender, delivery: &Delivery) -> Payer {
        let (Some(ack), Some(request)) = (delivery.ack, delivery.correlation_id.as_deref()) else {
            return Payer::Sender;
        };
        match self.find_from(&delivery.to, &from.name, request) {
            Some((_, known)) if known.pending && known.seq == ack => Payer::Recipient,
            _ => Payer::Sender,
        }
    }

    fn check_admission(
        &self,
        delivery: &Delivery,
        from: &Sender,
        rights: Rights,
        charge: Charge,
    ) -> Result<(), Refusal> {
        let options = &self.options;
        if self.stopping() {
            return Err(Refusal::ShuttingDown);
        }
        if self.disk_low || (self.disk_tight && rights.has_share()) {
            return Err(Refusal::DiskFull);
        }
        if delivery.deadline_ms == Some(0) {
            return Err(Refusal::Expired { id: delivery.id.clone(), mailbox: delivery.to.clone() });
        }
        let share = || {
            let share = self.known_names.share(from.role.as_deref());
            if rights.host { share.max(Share::DEFAULT) } else { share }
        };
        let storing = || Storing { sender: charge.sender, owner: self.owner_key(&from.name), rights, share };
        self.totals.check(options, charge, storing())?;
        let mailbox = self.names.get(&*delivery.to).map(|&index| &self.boxes[index]);
        // The reply to a request waits in the sender's mailbox, which may be gone until then.
        if mailbox.is_none() || (delivery.purpose == Purpose::Request && rights.has_share()) {
            self.totals.check_mailbox(options, self.boxes.len(), charge.payer, storing())?;
        }
        let size = charge.size;
        let (messages, bytes) = mailbox.map_or((0, 0), |mailbox| (mailbox.pending, mailbox.pending_bytes));
        if messages >= options.mailbox_messages || bytes + size > options.mailbox_bytes {
            return Err(Refusal::MailboxFull { mailbox: delivery.to.clone(), messages, bytes });
        }
        Ok(())
    }

    /// Enqueues an accepted message and pushes it if its recipient is subscribed and its window has room.
    pub(crate) fn enqueue(
        &mut self,
        now: Millis,
        index: usize,
        message: Arc<Message>,
        payer: Payer,
        waiters: Waiters,
        effects: &mut Effects,
    ) -> Seq {
        let (seq, size) = (message.seq, message.size());
        let sender = self.sender_key(&message.from.name);
        let pending = PendingId { seq, content: message.content, sender, size: size as u32, payer };
        self.ledger.insert_pending(message.fingerprint, pending);
        self.message_changed(index, message.fingerprint);
        self.totals.add(Charge { sender, payer, owner: self.boxes[index].owner, size });
        let mailbox = &mut self.boxes[index];
        if mailbox.pending == 0 {
            mailbox.oldest_hint = now;
        }
        let push_now = mailbox.is_caught_up() && mailbox.has_room(size);
        mailbox.pending += 1;
        mailbox.pending_bytes += size;
        self.note_deadline(&message);
        self.unsettled.push(Arc::clone(&message), waiters, now + self.options.linger);
        if push_now {
            self.push(now, index, &message, effects);
        } else {
            self.boxes[index].waiting.insert(seq);
            self.pump(now, index, effects);
            // A recipient that is absent or behind can't acknowledge within the linger, so write without delay.
            self.unsettled.hurry();
        }
        seq
    }

    pub(crate) fn note_deadline(&mut self, message: &Message) {
        if let Some(at) = message.expires_at {
            self.deadlines.insert((at, message.seq), DeadlineEntry::of(message));
        }
    }

    /// Moves an undeliverable message to `NAME#dead`, atomically on disk. Returns false, and leaves the message where
    /// it is, if a different message with the same id is already pending there.
    pub(crate) fn dead_letter(&mut self, now: Millis, index: usize, message: &Message, effects: &mut Effects) -> bool {
        let name = self.dead_letter_name(&message.mailbox);
        let fingerprint = fingerprint(self.options.fingerprint_seed, &name, &message.id);
        let dead_letter = match self.ledger.get(&fingerprint) {
            Some(known) if known.pending && known.content != message.content => return false,
            // The same message was dead-lettered before.
            Some(known) if known.pending => known.seq,
            _ => self.enqueue_dead_letter(now, &name, fingerprint, message, effects),
        };
        self.transfer_settlements(message.seq, dead_letter);
        let waiters = self.settle(now, index, message.seq, message.fingerprint, Some(dead_letter));
        self.transfer_waiters(dead_letter, waiters, effects);
        true
    }

    /// Returns the name of the dead-letter mailbox. A name that would exceed the limit is truncated and gets a hash of
    /// the full name: peers can't subscribe to a longer name.
    pub(crate) fn dead_letter_name(&self, mailbox: &str) -> ByteString {
        if mailbox.len() + DEAD_LETTER_SUFFIX.len() <= MAX_MAILBOX_NAME_BYTES {
            return ByteString::from(format!("{mailbox}{DEAD_LETTER_SUFFIX}"));
        }
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(mailbox.as_bytes(), self.options.fingerprint_seed);
        let ending = format!("~{hash:016x}{DEAD_LETTER_SUFFIX}");
        let kept = &mailbox[..mailbox.floor_char_boundary(MAX_MAILBOX_NAME_BYTES - ending.len())];
        ByteString::from(format!("{kept}{ending}"))
    }

    /// The settlements of a reply that is dead-lettered before it is durable become those of its dead letter.
    fn transfer_settlements(&mut self, from: Seq, dead_letter: Seq) {
        let Some(reply) = self.unsettled.get_mut(from) else { return };
        let (stage, settles) = (reply.stage, std::mem::take(&mut reply.settles));
        for provisional in &settles {
            self.ledger.depend_on(&provisional.settled.fingerprint, dead_letter);
        }
        match &mut self.writing {
            Some(writing) if stage == Stage::Writing => writing.transferred.push((dead_letter, settles)),
            _ => self.attach_settlements(dead_letter, settles),
        }
    }

    /// Writes settlements in the batch of that message, or in the next batch if the message is already durable.
    pub(crate) fn attach_settlements(&mut self, message: Seq, settles: Vec<Provisional>) {
        match self.unsettled.get_mut(message) {
            Some(unsettled) => unsettled.settles.extend(settles),
            None => self.open.settled.extend(settles.into_iter().map(|provisional| provisional.settled)),
        }
    }

    fn enqueue_dead_letter(
        &mut self,
        now: Millis,
        name: &str,
        fingerprint: Fingerprint,
        message: &Message,
        effects: &mut Effects,
    ) -> Seq {
        let payer = self.ledger.payer(&message.fingerprint);
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
        self.enqueue(now, dead, dead_letter, payer, Waiters::new(), effects)
    }
}
