//! Which partition a command goes to.

use super::ConnState;
use crate::Partition;
use bytestring::ByteString;
use std::collections::{HashMap, VecDeque};
use toolbus_engine::{Command, Delivery, Purpose, Seq};

/// Maximum number of replies whose partitions are remembered. The acknowledgement of an older one by id has no effect, and
/// it is pushed again.
const MAX_PUSHED: usize = 4096;

/// The partitions of replies that were pushed to a connection.
#[derive(Default)]
pub struct PushedReplies {
    partitions: HashMap<ByteString, Partition>,
    oldest_first: VecDeque<ByteString>,
}

impl PushedReplies {
    pub fn insert(&mut self, id: &ByteString, partition: Partition) {
        if self.partitions.insert(id.clone(), partition).is_none() {
            self.oldest_first.push_back(id.clone());
        }
        if self.oldest_first.len() > MAX_PUSHED
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.partitions.remove(&oldest);
        }
    }

    fn get(&self, id: &str) -> Option<Partition> {
        self.partitions.get(id).copied()
    }
}

impl ConnState {
    /// Appends the command to the lists of the partitions that it goes to.
    pub fn route(&mut self, command: Command, routed: &mut [Vec<Command>]) {
        match command {
            Command::Deliver(delivery) => self.deliver(delivery, routed),
            Command::AckTags { tags } => self.by_tag(tags, routed, |tags| Command::AckTags { tags }),
            Command::RefusedRequests { tags } => self.by_tag(tags, routed, |tags| Command::RefusedRequests { tags }),
            Command::Passed { tags } => self.by_tag(tags, routed, |tags| Command::Passed { tags }),
            Command::ActAsHost => {
                self.is_host = true;
                to_all(Command::ActAsHost, routed);
            }
            Command::Status { ref request_id } => {
                self.answers.expect_status(request_id);
                to_all(command, routed);
            }
            Command::Inspect { ref request_id, .. } => {
                self.answers.expect_inspection(request_id);
                to_all(command, routed);
            }
            Command::Follow { ref request_id, .. } => {
                self.answers.follow(request_id);
                to_all(command, routed);
            }
            Command::Unfollow { ref request_id } => {
                self.answers.unfollow(request_id);
                to_all(command, routed);
            }
            Command::Subscribe => {
                self.is_displaced = false;
                to_all(command, routed);
            }
            command => {
                let partition = self.partition_of(&command);
                push(partition, command, routed);
            }
        }
    }

    /// The partition of a command that goes to one.
    fn partition_of(&self, command: &Command) -> Partition {
        match command {
            Command::Ack { id } | Command::AckWithReceipt { id, .. } => self.pushed.get(id).unwrap_or(self.home),
            Command::Cancel { to, .. } => self.count.of(to),
            // Beside the reply that it must not overtake.
            Command::Event { .. } if self.is_host => self.home,
            Command::Event { to, .. } => self.count.of(to),
            Command::Unreadable { message } => self.of_seq(message.seq),
            // Every partition knows all connections.
            _ => self.home,
        }
    }

    fn deliver(&mut self, delivery: Delivery, routed: &mut [Vec<Command>]) {
        let partition = match delivery.purpose {
            // The reply and the settlement of its request are one record.
            _ if delivery.ack.is_some_and(|tag| self.is_valid(tag)) => {
                delivery.ack.map_or(self.home, |tag| self.of_seq(tag))
            }
            purpose if stays_with_sender(purpose, self.is_host) => self.home,
            _ => self.count.of(&delivery.to),
        };
        self.delivers += 1;
        let expected = &mut self.expected[usize::from(partition.0)];
        if *expected != self.delivers {
            push(partition, Command::Numbered { next: self.delivers }, routed);
        }
        *expected = self.delivers + 1;
        push(partition, Command::Deliver(delivery), routed);
    }

    fn by_tag(&self, tags: Vec<Seq>, routed: &mut [Vec<Command>], command: impl Fn(Vec<Seq>) -> Command) {
        let mut split: Vec<Vec<Seq>> = vec![Vec::new(); routed.len()];
        for tag in tags.into_iter().filter(|tag| self.is_valid(*tag)) {
            split[usize::from(self.of_seq(tag).0)].push(tag);
        }
        for (number, tags) in split.into_iter().enumerate().filter(|(_, tags)| !tags.is_empty()) {
            routed[number].push(command(tags));
        }
    }

    fn is_valid(&self, seq: Seq) -> bool {
        Partition::of_seq(seq).0 < self.count.count()
    }

    /// The partition of a sequence number. A number that no partition assigns leads home, where it is not known.
    fn of_seq(&self, seq: Seq) -> Partition {
        if self.is_valid(seq) { Partition::of_seq(seq) } else { self.home }
    }
}

/// Whether a message is in the partition of its sender instead of its recipient's: a reply is beside its request, and an event
/// of a host beside the reply that it must not overtake.
pub fn stays_with_sender(purpose: Purpose, is_host: bool) -> bool {
    matches!(purpose, Purpose::HostReply | Purpose::Reply) || (purpose == Purpose::Event && is_host)
}

fn push(Partition(number): Partition, command: Command, routed: &mut [Vec<Command>]) {
    routed[usize::from(number)].push(command);
}

fn to_all(command: Command, routed: &mut [Vec<Command>]) {
    routed.iter_mut().for_each(|commands| commands.push(command.clone()));
}
