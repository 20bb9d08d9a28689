//! Checks the engine's effects against the model and executes them.

use super::storage::PendingFetch;
use super::world::World;
use bytestring::ByteString;
use toolbus_engine::{CancelOutcome, ConnId, Effect, Effects, Outgoing, Refusal};

impl World {
    pub fn apply_effects(&mut self, effects: Effects) {
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
            return self.model.violated(format!("{outgoing:?} was sent to {conn:?}, which is closed"));
        };
        match &outgoing {
            Outgoing::Message { message, attempt, .. } => {
                let no = self.model.pushed(now, conn, message, *attempt);
                let no = no.map_or(u64::MAX, |no| no as u64);
                self.note(
                    "push",
                    &[("conn", conn.0), ("message", no), ("seq", message.seq), ("attempt", u64::from(*attempt))],
                );
            }
            Outgoing::Receipt { number, id } => match link.numbers.get(*number as usize - 1).cloned().flatten() {
                Some((no, sent)) if sent == *id => {
                    self.model.receipted(now, no);
                    self.note("receipt", &[("conn", conn.0), ("message", no as u64)]);
                }
                _ => self.model.violated(format!("receipt {number} names '{id}'")),
            },
            Outgoing::AckResult { request_id, refusal: None, .. } => {
                let no = request_id.parse().expect("the request id is the message's number");
                self.model.ack_confirmed(no);
                self.note("ack result", &[("conn", conn.0), ("message", no as u64)]);
            }
            Outgoing::CancelResult { request_id, outcome, .. } => {
                if let (Ok(no), CancelOutcome::Withdrawn) = (request_id.parse(), outcome) {
                    self.model.withdrawal_reported(no);
                    self.note("withdrawn", &[("conn", conn.0), ("message", no as u64)]);
                }
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

    /// A refusal must concern a message of this client and have a valid reason.
    fn check_refusal(&mut self, client: usize, refusal: &Refusal, id: Option<&ByteString>) {
        let Some(id) = id else { return };
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.messages[*no].id == *id);
        let is_wrong = match (refusal, own) {
            (Refusal::IdConflict { .. }, _) => false,
            (Refusal::Expired { mailbox, .. }, Some(no)) => {
                let sent = &self.model.messages[no];
                sent.mailbox != *mailbox || !(sent.deadline_ms == Some(0) || sent.expired_once(self.now))
            }
            (Refusal::Cancelled { mailbox, .. }, Some(no)) => {
                let sent = &self.model.messages[no];
                sent.mailbox != *mailbox || !sent.cancelled_once || self.model.may_be_restored(no)
            }
            (Refusal::DiskFull, Some(no)) => self.model.messages[no].pending() && self.model.has_one_incarnation(no),
            (_, own) => own.is_none(),
        };
        if is_wrong {
            self.model.violated(format!("wrong refusal of '{id}': {refusal}"));
        }
    }
}
