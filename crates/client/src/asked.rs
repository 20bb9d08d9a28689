//! Questions to the broker that wait for their answer, by the id that they were asked under.

use crate::error::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use tokio::sync::oneshot;
use toolbus_protocol::{Looked, Status};

type Waiting<T> = HashMap<ByteString, oneshot::Sender<BrokerResult<T>>>;

/// They are about one moment, so none of them outlives its connection.
#[derive(Default)]
pub struct Asked {
    pub statuses: Waiting<Status>,
    pub looks: Waiting<Looked>,
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

    pub fn looked(&mut self, looked: Looked) {
        if let Some(asked) = self.looks.remove(&looked.request_id) {
            asked.send(Ok(looked)).ok();
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
