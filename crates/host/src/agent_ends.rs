//! Agents that end: their credential was revoked or has expired. Everything that they began at this host ends too, and the
//! next agent of the same name inherits nothing.
//!
//! The broker tells the generation of a name, which counts its revoked agents. From the second agent on, the host qualifies
//! the mailbox of a caller with it, as in `bob/1#mcp`: calls, journal entries, tasks, approvals and sessions of an earlier
//! agent belong to another name then. A `/` is not allowed in names on the bus, so no peer can have such a name. Messages
//! are addressed without it.

use crate::calls::Slot;
use crate::host::Host;
use bytestring::ByteString;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use toolbus_audit::Record;
use toolbus_call::Event;
use toolbus_client::{AgentEnd, Inspect};
use toolbus_protocol::{InboxMessage, principal_of};

/// The broker answers from memory.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The current generation of each name that had an agent before.
#[derive(Default)]
pub struct Generations(RwLock<HashMap<ByteString, u64>>);

impl Generations {
    /// The mailbox of a caller of the current generation.
    pub fn qualified(&self, mailbox: &str) -> ByteString {
        qualify(mailbox, self.current(principal_of(mailbox)))
    }

    /// Whether a later agent may have the name of this one, which may be qualified.
    fn has_ended(&self, agent: &str) -> bool {
        let (name, generation) = split(agent);
        generation < self.current(name)
    }

    fn current(&self, name: &str) -> u64 {
        self.0.read().expect("no code panics while it holds this lock").get(name).copied().unwrap_or(0)
    }

    fn set(&self, name: &ByteString, generation: u64) {
        self.0.write().expect("no code panics while it holds this lock").insert(name.clone(), generation);
    }
}

/// The mailbox of a caller as it is called on the bus.
pub fn address(mailbox: &str) -> Cow<'_, str> {
    match mailbox.split_once('/') {
        None => Cow::Borrowed(mailbox),
        Some((name, rest)) => match rest.split_once('#') {
            None => Cow::Borrowed(name),
            Some((_, suffix)) => Cow::Owned(format!("{name}#{suffix}")),
        },
    }
}

/// The request with the address of its sender.
pub fn addressed(request: &InboxMessage) -> Cow<'_, InboxMessage> {
    match address(&request.from.session_id) {
        Cow::Borrowed(address) if address.len() == request.from.session_id.len() => Cow::Borrowed(request),
        address => {
            let mut request = request.clone();
            request.from.session_id = ByteString::from(&*address);
            Cow::Owned(request)
        }
    }
}

fn qualify(mailbox: &str, generation: u64) -> ByteString {
    match (generation, mailbox.split_once('#')) {
        (0, _) => mailbox.into(),
        (_, None) => format!("{mailbox}/{generation}").into(),
        (_, Some((name, suffix))) => format!("{name}/{generation}#{suffix}").into(),
    }
}

/// The name and the generation of an agent.
fn split(agent: &str) -> (&str, u64) {
    agent.split_once('/').map_or((agent, 0), |(name, generation)| (name, generation.parse().unwrap_or(0)))
}

impl Host {
    /// Qualifies the sender of a message that has just arrived.
    pub fn qualify_sender(&self, mut message: InboxMessage) -> InboxMessage {
        let generation = self.outbox.client().generation_of(&message.id);
        if generation > 0 {
            message.from.session_id = qualify(&message.from.session_id, generation);
        }
        message
    }

    /// Waits until the broker has told which agents have ended: it does so before it answers.
    pub async fn first_agent_ends(&self) {
        let asked = self.outbox.client().inspect(Inspect::default());
        if !matches!(tokio::time::timeout(FIRST_REPORT_TIMEOUT, asked).await, Ok(Ok(_))) {
            tracing::debug!("the broker has not told in time which agents have ended");
        }
    }

    /// Ends everything that the agent began, except for its current generation if that is valid.
    pub fn end_agent(self: &Arc<Self>, end: &AgentEnd) {
        self.generations.set(&end.name, end.generation);
        let has_ended = |mailbox: &str| {
            let (name, generation) = split(principal_of(mailbox));
            let is_earlier = generation < end.generation || (end.expired && generation == end.generation);
            name == &*end.name && is_earlier
        };
        let calls: Vec<Arc<Slot>> = self.calls.views().into_iter().map(|(_, slot)| slot).collect();
        let calls: Vec<&Arc<Slot>> = calls.iter().filter(|slot| has_ended(slot.mailbox())).collect();
        calls.iter().for_each(|slot| self.audit_agent_end(slot, end));
        let agents: BTreeSet<&str> = calls.iter().map(|slot| slot.agent()).collect();
        for agent in agents {
            self.feed(Event::Revoked { agent: agent.into() });
        }
        self.pending_calls.end(has_ended);
        for server in &self.servers {
            let sessions = server.take_sessions(|session| has_ended(&session.mailbox));
            let server = Arc::clone(server);
            if !sessions.is_empty() {
                self.tracker.spawn(async move { server.end_sessions(sessions).await });
            }
        }
    }

    /// Ends a call that was admitted after its agent had ended.
    pub fn end_if_late(self: &Arc<Self>, agent: &str) {
        if self.generations.has_ended(agent) {
            self.feed(Event::Revoked { agent: agent.into() });
        }
    }

    fn audit_agent_end(&self, slot: &Slot, end: &AgentEnd) {
        let Some(audit) = &self.options.audit else { return };
        let reason = if end.expired { "expired" } else { "revoked" };
        let what = if slot.is_task() { "task" } else { "call" };
        let (to, id) = (slot.parsed.subject.name.clone(), Some(slot.id().to_string()));
        audit.note(Record::Ended { agent: slot.mailbox().to_owned(), reason, what, to, id, count: 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mailbox_of_a_later_agent_is_qualified_and_has_the_same_address() {
        let generations = Generations::default();
        generations.set(&"bob".into(), 2);
        for (mailbox, qualified) in
            [("bob", "bob/2"), ("bob#mcp", "bob/2#mcp"), ("bob#a#b", "bob/2#a#b"), ("bobby#mcp", "bobby#mcp")]
        {
            assert_eq!(&*generations.qualified(mailbox), qualified);
            assert_eq!(address(qualified), mailbox);
        }
        for (agent, has_ended) in [("bob", true), ("bob/1", true), ("bob/2", false), ("bobby", false)] {
            assert_eq!(generations.has_ended(agent), has_ended, "{agent}");
        }
    }
}
