//! Frames at the broker: each is applied to the engine and to the model, and the engine's effects are checked.

use super::client::Frame;
use super::forger;
use super::messages::{MessageNo, Settlement};
use super::world::World;
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_base::principal_of;
use toolbus_engine::{
    CancelOutcome, Command, ConnId, DEAD_LETTER_SUFFIX, Delivery, Effect, Effects, Message, Outgoing, Purpose, Refusal,
};

impl World {
    /// The broker reads the next frame of a link, unless backpressure from the disk holds it back.
    pub fn broker_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let waits = matches!(link.to_broker.front(), Some(Frame::Deliver { .. } | Frame::ReusedId { .. }));
        if waits && self.engine.congested() {
            return;
        }
        let client = link.client;
        match link.to_broker.pop_front() {
            None => {}
            Some(Frame::Subscribe) => self.subscribe(conn, client),
            Some(Frame::Deliver { no, ack }) => self.deliver(conn, client, no, ack),
            Some(Frame::ReusedId { no, other_content }) => self.reused_id(conn, no, other_content),
            Some(Frame::Ack { no }) => self.ack(conn, no, false),
            Some(Frame::AckWithReceipt { no }) => self.ack(conn, no, true),
            Some(Frame::AckTags { tags }) => self.ack_tags(conn, client, tags),
            Some(Frame::Unreadable { no, message }) => self.unreadable(conn, no, message),
            Some(Frame::Cancel { to, id }) => self.cancel(conn, client, to, id),
        }
    }

    fn handle(&mut self, conn: ConnId, command: Command) -> Effects {
        let mut effects = Effects::default();
        self.engine.handle(self.now, conn, command, &mut effects);
        effects
    }

    fn subscribe(&mut self, conn: ConnId, client: usize) {
        self.note("subscribe", &[("conn", conn.0)]);
        let name = self.clients[client].name.clone();
        let previous = self.model.mailbox(&name).subscriber.filter(|previous| *previous != conn);
        self.model.subscribed(&name, conn);
        let effects = self.handle(conn, Command::Subscribe);
        let notified = |effect: &Effect| {
            matches!(effect,
                Effect::Send { conn, outgoing: Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } }
                if Some(*conn) == previous)
        };
        if previous.is_some() && !effects.0.iter().any(notified) {
            self.model.violated("a subscriber was displaced and not notified");
        }
        self.apply_effects(effects);
    }

    fn deliver(&mut self, conn: ConnId, client: usize, no: MessageNo, ack: Option<u64>) {
        let sent = &self.model.messages[no];
        let id = sent.id.clone();
        let delivery = Delivery {
            to: sent.mailbox.clone(),
            id: id.clone(),
            correlation_id: sent.correlation_id.clone(),
            purpose: forger::purpose(self.scenario.restricted, no, &sent.mailbox, sent.answers.is_some()),
            sealed: sent.sealed.clone(),
            content: sent.content,
            deadline_ms: sent.deadline_ms,
            ack,
            age_ms: None,
        };
        self.note("deliver", &[("conn", conn.0), ("message", no as u64), ("ack", ack.unwrap_or_default())]);
        self.number(conn, Some((no, id.clone())));
        let effects = self.handle(conn, Command::Deliver(delivery));
        let refusal = refusal_of(&effects, conn, &id);
        if let Some(refusal) = refusal {
            self.model.refused(no, refusal);
        }
        match refusal {
            // A message that the broker already knows is accepted as a duplicate, even if it expires at that moment.
            Some(Refusal::Expired { .. }) if !self.model.messages[no].known => {}
            Some(refusal) if !matches!(refusal, Refusal::Expired { .. }) => {}
            _ => {
                self.model.accepted(self.now, no);
                let name = self.clients[client].name.clone();
                if let Some(settled) = ack.and_then(|ack| self.model.mailbox(&name).leases.get(&ack).copied()) {
                    self.model.answered(settled, no);
                }
            }
        }
        self.apply_effects(effects);
    }

    /// A forged deliver takes a receipt number too, but has no message.
    pub fn number_forgery(&mut self, conn: ConnId) {
        self.number(conn, None);
    }

    fn number(&mut self, conn: ConnId, about: Option<(MessageNo, ByteString)>) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.numbers.push(about);
        }
    }

    /// Delivers another message under an id that the broker must know.
    fn reused_id(&mut self, conn: ConnId, no: MessageNo, other_content: bool) {
        if !self.model.is_certainly_known(no) {
            return;
        }
        let sent = &self.model.messages[no];
        let (id, content) = (sent.id.clone(), sent.content ^ u64::from(other_content));
        let delivery = Delivery {
            to: sent.mailbox.clone(),
            id: id.clone(),
            correlation_id: None,
            purpose: Purpose::Other,
            sealed: sent.sealed.clone(),
            content,
            deadline_ms: None,
            ack: None,
            age_ms: None,
        };
        self.note("reused id", &[("conn", conn.0), ("message", no as u64)]);
        self.number(conn, None);
        let effects = self.handle(conn, Command::Deliver(delivery));
        let refused = match refusal_of(&effects, conn, &id) {
            Some(Refusal::IdConflict { .. }) => true,
            // With credentials, no client may send to a dead-letter mailbox, whatever the id.
            Some(Refusal::MayNotSend { mailbox }) => mailbox.ends_with(DEAD_LETTER_SUFFIX),
            _ => false,
        };
        if !refused {
            self.model.violated(format!("another message was accepted under the id of {}", self.model.describe(no)));
        }
    }

    fn ack(&mut self, conn: ConnId, no: MessageNo, with_receipt: bool) {
        self.note("ack", &[("conn", conn.0), ("message", no as u64)]);
        let id = self.model.messages[no].id.clone();
        let command = match with_receipt {
            true => Command::AckWithReceipt { id, request_id: ByteString::from(no.to_string()) },
            false => Command::Ack { id },
        };
        let effects = self.handle(conn, command);
        let unknown = effects.0.iter().any(|effect| match effect {
            Effect::Send { outgoing: Outgoing::Refused { refusal, .. }, .. } => {
                matches!(refusal, Refusal::UnknownMessage { .. })
            }
            Effect::Send { outgoing: Outgoing::AckResult { refusal, .. }, .. } => refusal.is_some(),
            _ => false,
        });
        match unknown {
            true if self.model.is_certainly_known(no) => {
                self.model.violated(format!("the broker does not know {}", self.model.describe(no)));
            }
            true => {}
            false => self.model.acked(no),
        }
        self.apply_effects(effects);
    }

    fn ack_tags(&mut self, conn: ConnId, client: usize, tags: Vec<u64>) {
        self.note("ack tags", &[("conn", conn.0), ("tags", tags.len() as u64)]);
        let name = self.clients[client].name.clone();
        for tag in &tags {
            if let Some(no) = self.model.mailbox(&name).leases.get(tag).copied() {
                self.model.settle(no, Settlement::Acked);
            }
        }
        let effects = self.handle(conn, Command::AckTags { tags });
        self.apply_effects(effects);
    }

    fn unreadable(&mut self, conn: ConnId, no: MessageNo, message: Arc<Message>) {
        self.note("unreadable", &[("conn", conn.0), ("message", no as u64)]);
        self.tick();
        if message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            self.model.skipped(conn, &message);
        } else if self.model.messages[no].pending() && self.model.messages[no].seq == Some(message.seq) {
            self.model.dead_lettered(no, message.accepted_at);
        }
        let effects = self.handle(conn, Command::Unreadable { message });
        self.apply_effects(effects);
    }

    /// Whether the canceller is another mailbox of the sender's agent. The broker accepts such a cancel only while it
    /// knows the sender without reading the disk, which is not modelled, so the simulation skips it.
    fn is_by_another_mailbox(&self, client: usize, to: &str, id: &str) -> bool {
        let Some(no) = self.model.find(to, id) else { return false };
        let from = self.model.messages[no].from;
        let agent = |client: usize| principal_of(&self.clients[client].name);
        from != client && agent(from) == agent(client)
    }

    fn cancel(&mut self, conn: ConnId, client: usize, to: ByteString, id: ByteString) {
        if self.is_by_another_mailbox(client, &to, &id) {
            return;
        }
        let subscriber = self.model.mailbox(&to).subscriber;
        // With credentials, a cancel is forwarded only if the message can still be cancelled.
        let own = self.model.find(&to, &id).filter(|no| self.model.messages[*no].from == client);
        let must_notify = !self.scenario.restricted || own.is_some_and(|no| self.model.is_certainly_open(no));
        let before = own.map(|no| (no, self.model.before_cancel(no)));
        let cancelled = self.model.cancelled(client, &to, &id);
        self.note("cancel", &[("conn", conn.0), ("message", cancelled.map_or(u64::MAX, |no| no as u64))]);
        let is_dead_letter = to.ends_with(DEAD_LETTER_SUFFIX);
        let request_id = Some(ByteString::from(own.map_or("none".to_owned(), |no| no.to_string())));
        let effects = self.handle(conn, Command::Cancel { to, correlation_id: id, request_id });
        let outcome = cancel_outcome(&effects);
        match before.filter(|_| !is_dead_letter) {
            Some((no, before)) => self.model.cancel_answered(no, before, outcome),
            None if is_dead_letter => {}
            None if outcome != Some(CancelOutcome::Unknown) => {
                self.model.violated(format!("a cancel of another client's message was answered with {outcome:?}"));
            }
            None => {}
        }
        let notified: Vec<ConnId> = effects
            .0
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send { conn, outgoing: Outgoing::Cancel { .. } } => Some(*conn),
                _ => None,
            })
            .collect();
        if (must_notify || !notified.is_empty()) && notified != Vec::from_iter(subscriber) {
            self.model.violated("a cancel was not sent to exactly the current subscriber");
        }
        self.apply_effects(effects);
    }
}

/// The outcome of a cancel, unless it is answered later.
pub fn cancel_outcome(effects: &Effects) -> Option<CancelOutcome> {
    effects.0.iter().find_map(|effect| match effect {
        Effect::Send { outgoing: Outgoing::CancelResult { outcome, .. }, .. } => Some(*outcome),
        _ => None,
    })
}

fn refusal_of<'a>(effects: &'a Effects, to: ConnId, about: &str) -> Option<&'a Refusal> {
    effects.0.iter().find_map(|effect| match effect {
        Effect::Send { conn, outgoing: Outgoing::Refused { refusal, id: Some(id) } } if *conn == to && id == about => {
            Some(refusal)
        }
        _ => None,
    })
}
