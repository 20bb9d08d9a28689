//! Delivery to subscribers: subscriptions, the push window, redelivery, and fetching from the store.

use crate::engine::DeadlineEntry;
use crate::mailbox::Lease;
use crate::{ConnId, DEAD_LETTER_SUFFIX, Effect, Effects, Engine, Message, Millis, Outgoing, PlantedBug, Refusal, Seq};
use bytestring::ByteString;
use std::sync::Arc;

/// Messages of one mailbox, fetched from the store in order.
#[derive(Debug, Default)]
pub struct Page {
    /// First sequence number of the fetch.
    pub from: Seq,
    /// The messages.
    pub messages: Vec<Arc<Message>>,
    /// Messages whose record is corrupt.
    pub damaged: Vec<Seq>,
}

impl Engine {
    pub(crate) fn subscribe(&mut self, now: Millis, conn: ConnId, effects: &mut Effects) {
        let Some(peer) = self.conns.get_mut(&conn) else { return };
        peer.subscribed = true;
        let name = Arc::clone(&peer.sender.name);
        let index = self.mailbox(&name);
        if let Some(previous) = self.boxes[index].subscriber.filter(|previous| *previous != conn) {
            if let Some(displaced) = self.conns.get_mut(&previous) {
                displaced.subscribed = false;
            }
            let refusal = Refusal::Displaced { mailbox: ByteString::from(&*name) };
            effects.send(previous, Outgoing::Refused { refusal, id: None });
        }
        self.end_subscription(now, index, effects);
        let peer = self.conns.get(&conn);
        let mut window = self.options.window(peer.is_some_and(|peer| peer.host));
        if let Some(messages) = self.options.version1_window_messages
            && peer.is_some_and(|peer| !peer.numbered_receipts)
        {
            window.messages = messages;
        }
        self.boxes[index].subscriber = Some(conn);
        self.boxes[index].window = window;
        self.report_ended_agents(conn, effects);
        self.pump(now, index, effects);
    }

    /// Frees the bytes of pushed messages that the subscriber's connection has passed on. They stay leased.
    pub(crate) fn passed(&mut self, now: Millis, name: &str, tags: &[Seq], effects: &mut Effects) {
        let Some(&index) = self.names.get(name) else { return };
        let mailbox = &mut self.boxes[index];
        for tag in tags {
            let lease = mailbox.leases.get_mut(tag);
            mailbox.leased_bytes -= lease.map_or(0, |lease| std::mem::take(&mut lease.size));
        }
        self.pump(now, index, effects);
    }

    /// Widens the push window to that of a host.
    pub(crate) fn act_as_host(&mut self, now: Millis, conn: ConnId, effects: &mut Effects) {
        let Some(peer) = self.conns.get_mut(&conn) else { return };
        peer.host = true;
        if let Some(&index) = self.names.get(&peer.sender.name).filter(|_| peer.subscribed) {
            self.boxes[index].window = self.options.window(true);
            self.pump(now, index, effects);
        }
    }

    /// Ends the subscription of a mailbox. Unacknowledged messages are redelivered first to the next subscriber, except
    /// for those that were cancelled in flight.
    pub(crate) fn end_subscription(&mut self, now: Millis, index: usize, effects: &mut Effects) {
        self.boxes[index].subscriber = None;
        if self.options.planted(PlantedBug::NoRedelivery) {
            return;
        }
        self.discard_cancelled(now, index, effects);
        let mailbox = &mut self.boxes[index];
        mailbox.rewind(0);
        mailbox.leased_bytes = 0;
        for seq in std::mem::take(&mut mailbox.skipped) {
            match self.unsettled.get(seq) {
                Some(_) => drop(mailbox.waiting.insert(seq)),
                None => mailbox.add_stored(seq, None),
            }
        }
        for (seq, lease) in std::mem::take(&mut mailbox.leases) {
            mailbox.attempts.insert(seq, lease.attempt);
            self.open.note_attempts(&mailbox.name, seq, lease.attempt);
            match self.unsettled.get(seq) {
                Some(_) => drop(mailbox.waiting.insert(seq)),
                None => mailbox.add_stored(seq, lease.expires_at),
            }
            self.open.durable_by(now + self.options.lazy);
        }
    }

    /// Pushes as many messages as the subscriber's window admits, durable ones before those that are only in memory.
    pub(crate) fn pump(&mut self, now: Millis, index: usize, effects: &mut Effects) {
        loop {
            let mailbox = &mut self.boxes[index];
            if mailbox.subscriber.is_none() {
                return;
            }
            if mailbox.stored_unpushed() > 0 {
                if !mailbox.fetching
                    && let Some((max_messages, max_bytes)) = mailbox.room_to_fetch(&self.options)
                {
                    mailbox.fetching = true;
                    let (mailbox, from) = (Arc::clone(&mailbox.name), mailbox.cursor);
                    effects.0.push(Effect::Fetch { mailbox, from, max_messages, max_bytes });
                }
                return;
            }
            let Some(&next) = mailbox.waiting.first() else { return };
            let message = Arc::clone(&self.unsettled.get(next).expect("waiting messages are unsettled").message);
            if !self.boxes[index].has_room(message.size()) && !self.options.planted(PlantedBug::WindowIgnored) {
                return;
            }
            self.push(now, index, &message, effects);
        }
    }

    /// Handles the result of [`Effect::Fetch`].
    pub fn fetched(&mut self, now: Millis, mailbox: &str, page: Page, effects: &mut Effects) {
        let Some(&index) = self.names.get(mailbox) else { return };
        self.boxes[index].fetching = false;
        for seq in &page.damaged {
            self.discard_corrupt(now, index, *seq);
        }
        let stale = std::mem::take(&mut self.boxes[index].page_is_stale);
        // If the subscriber changed since the fetch was issued, the cursor was rewound and the page is outdated.
        if !stale && page.from == self.boxes[index].cursor {
            self.push_page(now, index, &page, effects);
        }
        self.pump(now, index, effects);
        self.drop_if_idle(index);
        self.notify_followers(effects);
    }

    /// Pushes the messages of a page until the window is full. The cursor also moves past messages that are settled or
    /// leased: otherwise the next fetch would return them again.
    fn push_page(&mut self, now: Millis, index: usize, page: &Page, effects: &mut Effects) {
        for message in &page.messages {
            let mailbox = &mut self.boxes[index];
            let settled = !self.ledger.pending(&message.fingerprint, message.seq);
            if !settled && !mailbox.was_pushed(message.seq) {
                if mailbox.subscriber.is_none() {
                    return;
                }
                if !mailbox.has_room(message.size()) {
                    mailbox.next_size = message.size();
                    return;
                }
                self.push(now, index, message, effects);
            }
            self.boxes[index].advance_past(message.seq);
        }
        if let Some(last) = page.damaged.last() {
            self.boxes[index].advance_past(*last);
        }
    }

    /// Pushes one message, unless it has expired or is dead-lettered after the maximum number of attempts.
    pub(crate) fn push(&mut self, now: Millis, index: usize, message: &Arc<Message>, effects: &mut Effects) {
        if !self.options.planted(PlantedBug::DeadlineIgnored)
            && let Some(at) = message.expires_at.filter(|at| *at <= now)
        {
            self.deadlines.remove(&(at, message.seq));
            self.discard_expired(now, message.seq, DeadlineEntry::of(message), effects);
            return;
        }
        let mailbox = &self.boxes[index];
        let attempt = mailbox.attempts.get(&message.seq).copied().unwrap_or_default() + 1;
        let to_host = mailbox.subscriber.and_then(|conn| self.conns.get(&conn)).is_some_and(|peer| peer.host);
        if attempt > self.options.attempts(to_host)
            && !mailbox.name.ends_with(DEAD_LETTER_SUFFIX)
            && self.dead_letter(now, index, message, effects)
        {
            if to_host {
                self.notify_dead_lettered(message, effects);
            }
            return;
        }
        let mailbox = &mut self.boxes[index];
        let Some(conn) = mailbox.subscriber else { return };
        let lease = Lease {
            fingerprint: message.fingerprint,
            size: message.size(),
            attempt,
            accepted_at: message.accepted_at,
            expires_at: message.expires_at,
            cancelled: None,
            refusable: Some(Arc::clone(&message.from.name)),
        };
        mailbox.lease(message.seq, lease);
        if self.is_unsure(index, message) {
            effects.send(conn, Outgoing::Unsure { id: message.id.clone() });
        }
        let deadline_ms = message.expires_at.map(|at| at.saturating_sub(now));
        effects.send(conn, Outgoing::Message { message: Arc::clone(message), attempt, deadline_ms });
    }

    /// Notifies the sender of a dead-lettered request to a host: it waits for a reply that will not come.
    fn notify_dead_lettered(&self, message: &Message, effects: &mut Effects) {
        let (id, mailbox) = (message.id.clone(), ByteString::from(&*message.mailbox));
        let refusal = Refusal::TooOften { id: id.clone(), mailbox };
        self.to_subscriber(&message.from.name, Outgoing::Refused { refusal, id: Some(id) }, effects);
    }

    fn discard_corrupt(&mut self, now: Millis, index: usize, seq: Seq) {
        if let Some(fingerprint) = self.ledger.find_pending(seq) {
            self.set_aside += 1;
            self.settle(now, index, seq, fingerprint, None);
        }
    }
}
