//! The engine's effects: each is checked, then put on its way.

use super::storage::PendingFetch;
use super::world::World;
use bytestring::ByteString;
use toolbus_engine::{ConnId, Effect, Effects, Outgoing, Refusal};

impl World {
    /// Checks what the engine decided and puts it on its way.
    pub fn carry_out(&mut self, effects: Effects) {
        for effect in effects.0 {
            match effect {
                Effect::Send { conn, outgoing } => self.send(conn, outgoing),
                Effect::Fetch { mailbox, from, max_messages, max_bytes } => {
                    self.note("fetch", &[("from", from), ("messages", max_messages as u64), ("bytes", max_bytes)]);
                    self.fetches.push(PendingFetch { mailbox, from, max_messages, max_bytes, page: None });
                }
            }
        }
    }

    fn send(&mut self, conn: ConnId, outgoing: Outgoing) {
        let now = self.now;
        let Some(link) = self.links.get(&conn) else {
            return self.model.violated(format!("{conn:?} is gone and was sent {outgoing:?}"));
        };
        match &outgoing {
            Outgoing::Message { message, attempt, .. } => {
                let no = self.model.pushed(now, conn, message, *attempt);
                let no = no.map_or(u64::MAX, |no| no as u64);
                self.note(
                    "push",
                    &[("conn", conn.0), ("sent_message", no), ("seq", message.seq), ("attempt", u64::from(*attempt))],
                );
            }
            Outgoing::Receipt { number, id } => match link.numbers.get(*number as usize - 1).cloned().flatten() {
                Some((no, sent)) if sent == *id => {
                    self.model.receipted(now, no);
                    self.note("receipt", &[("conn", conn.0), ("sent_message", no as u64)]);
                }
                _ => self.model.violated(format!("receipt {number} names '{id}'")),
            },
            Outgoing::AckResult { request_id, refusal: None, .. } => {
                let no = request_id.parse().expect("the request id is the sent_message's number");
                self.model.ack_confirmed(no);
                self.note("ack result", &[("conn", conn.0), ("sent_message", no as u64)]);
            }
            Outgoing::Refused { refusal, id } => {
                let client = link.client;
                self.note("refused", &[("conn", conn.0)]);
                self.check_refusal(client, refusal, id.as_ref());
            }
            _ => {}
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.to_client.push_back(outgoing);
        }
    }

    /// A refusal must be about a message of this client and true of it.
    fn check_refusal(&mut self, client: usize, refusal: &Refusal, id: Option<&ByteString>) {
        let Some(id) = id else { return };
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.sent[*no].id == *id);
        let lie = match (refusal, own) {
            (Refusal::IdConflict { .. }, _) => false,
            (Refusal::Expired { mailbox, .. }, Some(no)) => {
                let sent_message = &self.model.sent[no];
                sent_message.mailbox != *mailbox
                    || !(sent_message.deadline_ms == Some(0) || sent_message.expired_once(self.now))
            }
            (Refusal::Cancelled { mailbox, .. }, Some(no)) => {
                let sent_message = &self.model.sent[no];
                sent_message.mailbox != *mailbox || !sent_message.cancelled_once || self.model.may_come_back(no)
            }
            (Refusal::DiskFull, Some(no)) => self.model.sent[no].pending() && self.model.has_one_life(no),
            (_, own) => own.is_none(),
        };
        if lie {
            self.model.violated(format!("'{id}' is not what was refused: {refusal}"));
        }
    }
}
