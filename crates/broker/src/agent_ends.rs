//! Follows the agents of the registry: when one ends, so does everything that it began, with a line in the audit log for each
//! message.

use crate::core::BrokerCore;
use crate::generations::Change;
use crate::server::ServerShared;
use std::sync::Weak;
use toolbus_audit::{AuditLog, Record};
use toolbus_engine::EndedMessages;
use toolbus_identity::Agents;

/// Withdrawn messages of one agent that get a line each in the audit log. Another line counts all.
const MAX_AUDITED: usize = 1000;

/// Carries out the changes of the agents, also those that happened while the broker was not running. Returns false if they
/// could not be recorded.
pub fn update(server: &Weak<ServerShared>, agents: &Agents) -> bool {
    let Some(server) = server.upgrade() else { return true };
    server.core.update_agents(agents, &|name| server.is_reserved(name), server.options.audit.as_ref())
}

/// Carries out the change of one agent. Returns the end of the removed messages.
pub fn apply(core: &BrokerCore, audit: Option<&AuditLog>, name: &str, change: Change) -> toolbus_engine::Seq {
    let (before, removed, reason) = match change {
        Change::Ended => {
            let (before, removed) = core.step(|engine, now, effects| engine.end_generation(now, name, effects));
            (before, removed, "revoked")
        }
        Change::Expired => (0, core.step(|engine, now, effects| engine.expire_agent(now, name, effects)), "expired"),
        Change::Renewed => {
            core.step(|engine, _, _| engine.renew_agent(name));
            return 0;
        }
    };
    tracing::info!(agent = name, reason, sent = removed.sent.len(), received = removed.received, "an agent has ended");
    if let Some(audit) = audit {
        record(audit, name, reason, &removed);
    }
    before
}

fn record(audit: &AuditLog, agent: &str, reason: &'static str, removed: &EndedMessages) {
    let line = |what, to: Option<String>, id: Option<String>, count| {
        audit.note(Record::Ended { agent: agent.to_owned(), reason, what, to, id, count });
    };
    // Expired agents are found again at every start.
    if reason == "revoked" {
        line("agent", None, None, 1);
    }
    for (to, id) in removed.sent.iter().take(MAX_AUDITED) {
        line("message", Some(to.to_string()), id.as_ref().map(ToString::to_string), 1);
    }
    for (what, count) in [("sent_messages", removed.sent.len() as u64), ("received_messages", removed.received)] {
        if count > 0 {
            line(what, None, None, count);
        }
    }
}
