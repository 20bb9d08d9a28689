//! The end of every run: faults stop, all clients connect, read and acknowledge. Afterwards no work may remain, and
//! every receipted message must have been read, or have expired, been cancelled or been dead-lettered.

use super::client::Frame;
use super::messages::{MessageNo, Phase};
use super::world::World;
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX};

const ROUNDS: usize = 400;
/// After this many rounds a client no longer retries refused messages.
const RETRY_ROUNDS: usize = 40;

impl World {
    pub fn drain(&mut self) {
        self.disk.stop_after(None);
        self.disk.fail_syncs(false);
        self.grow_disk();
        for round in 0..ROUNDS {
            self.advance(3);
            self.tick();
            self.connect_all();
            self.pass_all_frames();
            self.acknowledge_all();
            self.retry_refused(round);
            self.serve_fetches();
            (0..4).for_each(|_| self.storage_step());
            if round % 7 == 0 {
                self.reclaim();
            }
            if self.model.violation().is_some() {
                return;
            }
            if self.is_quiescent() {
                self.quiesce();
                return self.check_ends();
            }
        }
        let left = self.remaining_work().join(", ");
        self.model.violated(format!("the drain did not finish: {left}"));
    }

    fn connect_all(&mut self) {
        for row in self.engine.status(self.now).mailboxes {
            if let Some(mailbox) = row.name.strip_suffix(DEAD_LETTER_SUFFIX) {
                self.add_dead_letter_reader(mailbox);
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].primary.is_none() {
                let conn = self.connect(client);
                self.make_primary(conn);
            }
            let name = self.clients[client].name.clone();
            let conn = self.clients[client].primary.expect("all clients were just connected");
            let asked = self.links[&conn].to_broker.iter().any(|frame| matches!(frame, Frame::Subscribe));
            let mailbox = self.model.mailbox(&name);
            // A new subscription is pushed the skipped dead letters again.
            if (mailbox.subscriber != Some(conn) || mailbox.skipped > 0) && !asked {
                self.queue(conn, Frame::Subscribe);
            }
        }
    }

    pub fn pass_all_frames(&mut self) {
        let conns: Vec<ConnId> = self.links.keys().copied().collect();
        for conn in conns {
            let waiting = self.links[&conn].to_broker.len();
            (0..waiting).for_each(|_| self.broker_reads(conn));
            while !self.links[&conn].to_client.is_empty() {
                self.client_reads(conn);
            }
        }
    }

    /// A request whose reply is outstanding or refused is not acknowledged yet.
    fn acknowledge_all(&mut self) {
        for client in 0..self.clients.len() {
            for unacked in std::mem::take(&mut self.clients[client].unacked) {
                let reply = self.clients[client].replies.get(&unacked.no);
                match reply.map(|reply| self.model.messages[*reply].phase) {
                    Some(Phase::Outstanding | Phase::Refused) => self.clients[client].unacked.push(unacked),
                    _ => self.queue(unacked.conn, Frame::AckTags { tags: vec![unacked.message.seq] }),
                }
            }
        }
    }

    fn retry_refused(&mut self, round: usize) {
        for client in 0..self.clients.len() {
            for no in self.messages_in(client, Phase::Refused) {
                if round < RETRY_ROUNDS {
                    self.retry(client, no, None);
                } else {
                    self.model.messages[no].phase = Phase::GivenUp;
                }
            }
        }
    }

    fn serve_fetches(&mut self) {
        for _ in 0..100 {
            let Some(fetch) = self.fetches.first() else { return };
            if fetch.page.is_none() {
                self.read_page(0);
            }
            self.answer_fetch(0);
        }
    }

    fn is_quiescent(&self) -> bool {
        self.remaining_work().is_empty()
    }

    fn remaining_work(&self) -> Vec<String> {
        let waiting = |no: &usize| {
            let sent = &self.model.messages[*no];
            sent.origin.is_none() && matches!(sent.phase, Phase::Outstanding | Phase::Refused)
        };
        let open = (0..self.model.messages.len()).filter(waiting).map(|no| self.model.describe(no));
        let mut left: Vec<String> = open.collect();
        let frames = self.links.values().any(|link| !link.to_broker.is_empty() || !link.to_client.is_empty());
        let unacked = self.clients.iter().any(|client| !client.unacked.is_empty());
        let pending = self.engine.status(self.now).mailboxes.iter().any(|mailbox| mailbox.messages > 0);
        let storage = self.write.is_some() || self.engine.anything_to_write() || !self.fetches.is_empty();
        let others = [
            (frames, "frames"),
            (unacked, "unacknowledged messages"),
            (pending, "pending messages"),
            (storage, "storage"),
        ];
        left.extend(others.into_iter().filter(|(is_left, _)| *is_left).map(|(_, what)| what.to_owned()));
        left
    }

    /// Every receipted message was read, expired, was cancelled, or was read as a dead letter.
    fn check_ends(&mut self) {
        for no in 0..self.model.messages.len() {
            let sent = &self.model.messages[no];
            let promised = sent.origin.is_none() && (sent.receipted || sent.phase == Phase::Receipted);
            if promised && !self.has_valid_end(no) {
                self.model.violated(format!("{} was receipted and never read", self.model.describe(no)));
            }
        }
    }

    fn has_valid_end(&self, no: MessageNo) -> bool {
        let sent = &self.model.messages[no];
        sent.seen
            || sent.expired_once(self.model.latest)
            || sent.cancelled_once
            || sent.dead_copy.is_some_and(|copy| self.model.messages[copy].seen)
    }
}
