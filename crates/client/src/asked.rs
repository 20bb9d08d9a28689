//! Questions to the broker that wait for their answer, by the id that they were asked under.

use crate::error::{BrokerError, BrokerResult};
use crate::shared::Shared;
use bytestring::ByteString;
use hashbrown::HashMap;
use tokio::sync::oneshot;
use toolbus_protocol::{Inspected, Status};

type Waiting<T> = HashMap<ByteString, oneshot::Sender<BrokerResult<T>>>;

/// They are about one moment, so none of them outlives its connection.
#[derive(Default)]
pub struct Asked {
    pub statuses: Waiting<Status>,
    pub looks: Waiting<Inspected>,
}

/// A question that is not waited for any more is forgotten: its answer may never come.
pub struct Question<'a> {
    pub shared: &'a Shared,
    pub id: ByteString,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut session = self.shared.lock();
        session.asked.statuses.remove(&self.id);
        session.asked.looks.remove(&self.id);
    }
}

impl Asked {
    pub fn clear(&mut self) {
        self.statuses.clear();
        self.looks.clear();
    }

    pub fn status(&mut self, status: Status) {
        if let Some(asked) = self.statuses.remove(&status.request_id) {
            asked.send(Ok(status)).ok();
        }
    }

    pub fn inspected(&mut self, inspected: Inspected) {
        if let Some(asked) = self.looks.remove(&inspected.request_id) {
            asked.send(Ok(inspected)).ok();
        }
    }

    pub fn refused(&mut self, id: &ByteString, error: &BrokerError) {
        if let Some(asked) = self.statuses.remove(id) {
            asked.send(Err(error.clone())).ok();
        }
        if let Some(asked) = self.looks.remove(id) {
            asked.send(Err(error.clone())).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use toolbus_protocol::AgentRef;

    #[test]
    fn a_question_that_nobody_waits_for_is_forgotten() {
        let shared = Shared::new(Session::new(AgentRef::new("me")), 1);
        let question = Question { shared: &shared, id: "q".into() };
        shared.lock().asked.looks.insert("q".into(), oneshot::channel().0);
        shared.lock().asked.looks.insert("other".into(), oneshot::channel().0);
        drop(question);
        assert_eq!(shared.lock().asked.looks.len(), 1);
    }
}
