//! Requests of servers to the client. Each hop has ids of its own: the client sees ours, the host gets back the one it
//! gave.

use std::collections::HashMap;
use toolbus_mcp::{Answer, Id, Members, Outcome, Raw, meta, raw};

#[derive(Default)]
pub struct Questions {
    open: HashMap<u64, Question>,
    last: u64,
}

pub struct Question {
    pub host: String,
    pub server: String,
    /// As the host gave it.
    id: Id,
    token: Option<Raw>,
}

impl Questions {
    /// The id under which the client is asked; none if too many are open.
    pub fn ask(&mut self, host: &str, server: &str, id: Id, params: Option<&Raw>, limit: usize) -> Option<Id> {
        if self.open.len() >= limit {
            return None;
        }
        self.last += 1;
        let token = meta::get(params.map(|params| &**params), meta::PROGRESS_TOKEN);
        self.open.insert(self.last, Question { host: host.to_owned(), server: server.to_owned(), id, token });
        Some(Id::number(self.last))
    }

    pub fn take(&mut self, id: Option<&Id>) -> Option<Question> {
        self.open.remove(&id?.as_u64()?)
    }

    /// Who waits for the progress with that token.
    pub fn asker_of_token(&self, token: &str) -> Option<(String, String)> {
        let waits = |question: &&Question| question.token.as_ref().is_some_and(|own| own.get() == token);
        self.open.values().find(waits).map(|question| (question.host.clone(), question.server.clone()))
    }

    /// A server's `notifications/cancelled` in the client's terms; it is of no use if nothing such is open.
    pub fn cancelled(&mut self, host: &str, server: &str, params: Option<&Raw>) -> Option<Raw> {
        let mut params = Members::of(params.map(|params| &**params)).ok()?;
        let id = Id::from_raw(params.get("requestId")?)?;
        let same = |question: &Question| question.host == host && question.server == server && question.id == id;
        let number = self.open.iter().find(|(_, question)| same(question)).map(|(number, _)| *number)?;
        self.open.remove(&number);
        params.set("requestId", raw(&number));
        Some(params.to_raw())
    }
}

impl Question {
    pub fn into_answer(self, session: &str, outcome: Outcome) -> Answer {
        Answer { server: self.server, session: session.to_owned(), id: self.id, outcome }
    }
}
