//! Pending queries to the broker (status, inspection, confirmed acknowledgements), by request id.

use crate::shared::Shared;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use tokio::sync::oneshot;
use toolbus_protocol::{AckResult, Inspected, MsgId, Status};

type Waiting<T> = HashMap<ByteString, oneshot::Sender<BrokerResult<T>>>;

/// Answers describe the current moment, so pending queries are dropped when the connection is lost.
#[derive(Default)]
pub struct PendingQueries {
    pub statuses: Waiting<Status>,
    pub inspections: Waiting<Inspected>,
    pub acks: Waiting<()>,
}

/// Removes a pending query when its caller stops waiting: the broker may never answer it.
pub struct QueryGuard<'a> {
    pub shared: &'a Shared,
    pub id: ByteString,
}

impl Drop for QueryGuard<'_> {
    fn drop(&mut self) {
        let mut session = self.shared.lock();
        session.queries.statuses.remove(&self.id);
        session.queries.inspections.remove(&self.id);
    }
}

impl PendingQueries {
    pub fn clear(&mut self) {
        self.statuses.clear();
        self.inspections.clear();
        self.acks.clear();
    }

    pub fn status(&mut self, status: Status) {
        if let Some(sender) = self.statuses.remove(&status.request_id) {
            sender.send(Ok(status)).ok();
        }
    }

    pub fn inspected(&mut self, inspected: Inspected) {
        if let Some(sender) = self.inspections.remove(&inspected.request_id) {
            sender.send(Ok(inspected)).ok();
        }
    }

    pub fn acked(&mut self, result: AckResult) {
        let Some(sender) = self.acks.remove(&result.request_id) else { return };
        let refused = || {
            let (reason, id) = (result.reason.unwrap_or_default(), Some(MsgId::from(result.id)));
            BrokerError::Rejected { code: None, reason, id }
        };
        sender.send(if result.accepted { Ok(()) } else { Err(refused()) }).ok();
    }

    pub fn refused(&mut self, id: &ByteString, error: &BrokerError) {
        if let Some(sender) = self.statuses.remove(id) {
            sender.send(Err(error.clone())).ok();
        }
        if let Some(sender) = self.inspections.remove(id) {
            sender.send(Err(error.clone())).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use toolbus_protocol::AgentRef;

    #[test]
    fn a_dropped_query_is_removed_from_the_pending_ones() {
        let shared = Shared::new(Session::new(AgentRef::new("me"), tokio::time::Instant::now()), 1);
        let guard = QueryGuard { shared: &shared, id: "q".into() };
        shared.lock().queries.inspections.insert("q".into(), oneshot::channel().0);
        shared.lock().queries.inspections.insert("other".into(), oneshot::channel().0);
        drop(guard);
        assert_eq!(shared.lock().queries.inspections.len(), 1);
    }
}
