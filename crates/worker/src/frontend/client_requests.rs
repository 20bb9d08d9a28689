//! Pending requests of servers to the client (elicitation, sampling, roots). Each hop has its own ids: the client sees
//! ours, the answer carries the host's.

use std::collections::HashMap;
use toolbus_mcp::{Answer, Id, Members, Outcome, Raw, meta, raw};

#[derive(Default)]
pub struct PendingRequests {
    pending: HashMap<u64, PendingRequest>,
    last: u64,
}

pub struct PendingRequest {
    pub host: String,
    pub server: String,
    /// The host's id of the request.
    id: Id,
    token: Option<Raw>,
}

impl PendingRequests {
    /// Registers a request and returns its id towards the client; `None` at the limit.
    pub fn register(&mut self, host: &str, server: &str, id: Id, params: Option<&Raw>, limit: usize) -> Option<Id> {
        if self.pending.len() >= limit {
            return None;
        }
        self.last += 1;
        let token = meta::get(params, meta::PROGRESS_TOKEN);
        self.pending.insert(self.last, PendingRequest { host: host.to_owned(), server: server.to_owned(), id, token });
        Some(Id::number(self.last))
    }

    pub fn take(&mut self, id: Option<&Id>) -> Option<PendingRequest> {
        self.pending.remove(&id?.as_u64()?)
    }

    /// The host and server of the request with this progress token.
    pub fn requester_of_token(&self, token: &str) -> Option<(String, String)> {
        let waits = |request: &&PendingRequest| request.token.as_ref().is_some_and(|own| own.get() == token);
        self.pending.values().find(waits).map(|request| (request.host.clone(), request.server.clone()))
    }

    /// Removes the request that a server cancelled and returns the params with the client's id; `None` if unknown.
    pub fn cancelled(&mut self, host: &str, server: &str, params: Option<&Raw>) -> Option<Raw> {
        let mut params = Members::of(params).ok()?.clone();
        let id = Id::from_raw(params.get("requestId")?)?;
        let same = |request: &PendingRequest| request.host == host && request.server == server && request.id == id;
        let number = self.pending.iter().find(|(_, request)| same(request)).map(|(number, _)| *number)?;
        self.pending.remove(&number);
        params.set("requestId", raw(&number));
        Some(params.into_raw())
    }
}

impl PendingRequest {
    pub fn into_answer(self, session: &str, outcome: Outcome) -> Answer {
        Answer { server: self.server, session: session.to_owned(), id: self.id, outcome }
    }
}
