//! The end of every run: faults stop, everyone connects, reads and acknowledges. Then nothing may be left, and every
//! message must have come to a good end.

use super::client::Frame;
use super::sent::{MessageNo, Phase};
use super::world::World;
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX};

const ROUNDS: usize = 400;
/// After this many rounds a client no longer asks again for what was refused.
const PATIENCE: usize = 40;

impl World {
    pub fn drain(&mut self) {
        self.disk.stop_after(None);
        self.disk.fail_syncs(false);
        self.grow_disk();
        for round in 0..ROUNDS {
            self.advance(3);
            self.tick();
            self.connect_everyone();
            self.pass_all_frames();
            self.acknowledge_everything();
            self.try_refused_again(round);
            self.serve_fetches();
            (0..4).for_each(|_| self.storage_step());
            if round % 7 == 0 {
                self.reclaim();
            }
            if self.model.violation().is_some() {
                return;
            }
            if self.is_quiet() {
                self.settle_down();
                return self.check_ends();
            }
        }
        let left = self.what_is_left().join(", ");
        self.model.violated(format!("something is left that never goes: {left}"));
    }

    fn connect_everyone(&mut self) {
        for row in self.engine.status(self.now).mailboxes {
            if let Some(mailbox) = row.name.strip_suffix(DEAD_LETTER_SUFFIX) {
                self.add_reader_of_dead_letters(mailbox);
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].primary.is_none() {
                let conn = self.connect(client);
                self.make_primary(conn);
            }
            let name = self.clients[client].name.clone();
            let conn = self.clients[client].primary.expect("everyone was just connected");
            let asked = self.links[&conn].to_broker.iter().any(|frame| matches!(frame, Frame::Subscribe));
            let mailbox = self.model.mailbox(&name);
            // Whoever subscribes anew is pushed again what could not be shown.
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

    /// A request whose reply is on its way waits for it.
    fn acknowledge_everything(&mut self) {
        for client in 0..self.clients.len() {
            for held in std::mem::take(&mut self.clients[client].held) {
                let reply = self.clients[client].replies.get(&held.no);
                match reply.map(|reply| self.model.sent[*reply].phase) {
                    Some(Phase::Outstanding | Phase::Refused) => self.clients[client].held.push(held),
                    _ => self.queue(held.conn, Frame::AckTags { tags: vec![held.message.seq] }),
                }
            }
        }
    }

    fn try_refused_again(&mut self, round: usize) {
        for client in 0..self.clients.len() {
            for no in self.letters_in(client, Phase::Refused) {
                if round < PATIENCE {
                    self.retry(client, no, None);
                } else {
                    self.model.sent[no].phase = Phase::GivenUp;
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

    fn is_quiet(&self) -> bool {
        self.what_is_left().is_empty()
    }

    fn what_is_left(&self) -> Vec<String> {
        let waiting = |no: &usize| {
            let sent_message = &self.model.sent[*no];
            sent_message.origin.is_none() && matches!(sent_message.phase, Phase::Outstanding | Phase::Refused)
        };
        let open = (0..self.model.sent.len()).filter(waiting).map(|no| self.model.describe(no));
        let mut left: Vec<String> = open.collect();
        let frames = self.links.values().any(|link| !link.to_broker.is_empty() || !link.to_client.is_empty());
        let held = self.clients.iter().any(|client| !client.held.is_empty());
        let pending = self.engine.status(self.now).mailboxes.iter().any(|mailbox| mailbox.messages > 0);
        let storage = self.write.is_some() || self.engine.anything_to_write() || !self.fetches.is_empty();
        let others = [(frames, "frames"), (held, "held"), (pending, "pending messages"), (storage, "storage")];
        left.extend(others.into_iter().filter(|(is_left, _)| *is_left).map(|(_, what)| what.to_owned()));
        left
    }

    /// A message with a receipt was read, or expired by its own deadline, or was taken back, or was read among the dead
    /// messages.
    fn check_ends(&mut self) {
        for no in 0..self.model.sent.len() {
            let sent_message = &self.model.sent[no];
            let promised =
                sent_message.origin.is_none() && (sent_message.receipted || sent_message.phase == Phase::Receipted);
            if promised && !self.came_to_a_good_end(no) {
                self.model.violated(format!("{} was receipted and never read", self.model.describe(no)));
            }
        }
    }

    fn came_to_a_good_end(&self, no: MessageNo) -> bool {
        let sent_message = &self.model.sent[no];
        sent_message.seen
            || sent_message.expired_once(self.model.latest)
            || sent_message.cancelled_once
            || sent_message.dead_copy.is_some_and(|copy| self.model.sent[copy].seen)
    }
}
