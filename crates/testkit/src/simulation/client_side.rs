//! Frames at a client.

use super::client::Unacked;
use super::messages::{MessageNo, Phase};
use super::world::World;
use bytestring::ByteString;
use toolbus_engine::{ConnId, Outgoing, Refusal};

impl World {
    pub fn client_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let index = link.client;
        let Some(outgoing) = link.to_client.pop_front() else { return };
        match outgoing {
            Outgoing::Message { message, .. } => {
                if let Some(no) = self.model.find(&message.mailbox, &message.id) {
                    self.model.messages[no].seen = true;
                    self.reply_implies_receipt(index, message.correlation_id.as_ref());
                    self.clients[index].hold(Unacked { no, message, conn });
                }
            }
            Outgoing::Receipt { number, .. } => {
                if let Some((no, _)) = self.links[&conn].numbers[number as usize - 1] {
                    self.model.messages[no].phase = Phase::Receipted;
                    self.clients[index].settling.remove(&no);
                }
            }
            Outgoing::Refused { refusal, id: Some(id) } => self.client_is_refused(index, &refusal, &id),
            _ => {}
        }
    }

    fn reply_implies_receipt(&mut self, client: usize, correlation_id: Option<&ByteString>) {
        if !self.clients[client].numbered_receipts {
            return;
        }
        let Some(id) = correlation_id else { return };
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.messages[*no].id == *id);
        if let Some(no) = own.filter(|no| self.model.messages[*no].phase == Phase::Outstanding) {
            self.model.messages[no].phase = Phase::Receipted;
            // The reply may answer an earlier transmission, so the request that this transmission settles is
            // acknowledged again.
            self.hold_again(client, no);
        }
    }

    /// Puts the request that a reply was to settle back among the unacknowledged messages.
    fn hold_again(&mut self, client: usize, reply: MessageNo) {
        if let Some(unacked) = self.clients[client].settling.remove(&reply)
            && self.links.contains_key(&unacked.conn)
        {
            self.clients[client].hold(unacked);
        }
    }

    fn client_is_refused(&mut self, client: usize, refusal: &Refusal, id: &ByteString) {
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.messages[*no].id == *id);
        let Some(no) = own.filter(|no| self.model.messages[*no].phase == Phase::Outstanding) else { return };
        self.model.messages[no].phase = match refusal {
            Refusal::IdConflict { .. } => return,
            Refusal::Expired { .. } | Refusal::Cancelled { .. } => Phase::GivenUp,
            _ => Phase::Refused,
        };
        self.hold_again(client, no);
    }
}
