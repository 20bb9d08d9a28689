//! The outbox of a connection, as one partition sees it: merges the answers of all partitions.

use super::{ConnState, lock};
use crate::Partition;
use std::sync::{Arc, Mutex};
use toolbus_engine::{Outbox, Outgoing, Refusal};

pub struct RoutedOutbox {
    pub partition: Partition,
    pub state: Arc<Mutex<ConnState>>,
    pub outbox: Arc<dyn Outbox>,
}

impl Outbox for RoutedOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        let mut state = lock(&self.state);
        let mut merged: Vec<Outgoing> =
            outgoing.drain(..).filter_map(|outgoing| state.answered(self.partition, outgoing)).collect();
        // Under the lock, so that frames of two partitions keep the order in which they were merged.
        if !merged.is_empty() {
            self.outbox.deliver(&mut merged);
        }
    }
}

impl ConnState {
    /// The frame that the connection gets, if any.
    fn answered(&mut self, partition: Partition, outgoing: Outgoing) -> Option<Outgoing> {
        match outgoing {
            Outgoing::Message { ref message, .. } => {
                if partition != self.home {
                    self.pushed.insert(&message.id, partition);
                }
                Some(outgoing)
            }
            Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } => {
                (!std::mem::replace(&mut self.is_displaced, true)).then_some(outgoing)
            }
            // Only requests to all partitions are refused for these reasons; a message may have the same id.
            Outgoing::Refused { refusal: Refusal::OperatorOnly | Refusal::TooManyFollows { .. }, id: Some(ref id) } => {
                self.answers.refused(id).then_some(outgoing)
            }
            Outgoing::Status { request_id, view } => self.answers.status(partition, request_id, *view),
            Outgoing::Inspected { request_id, view } => self.answers.inspected(request_id, *view),
            Outgoing::Followed { request_id, view } => self.answers.followed(partition, self.home, request_id, *view),
            // Each partition counts the agents of a name that ended there. All requests to this peer are in one partition.
            Outgoing::AgentsEnded { .. } if partition != self.home => None,
            outgoing => Some(outgoing),
        }
    }
}
