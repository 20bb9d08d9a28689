//! The records of the log. They never contain arguments or results, only a hash and a size of them.

use crate::canonical::sha256_hex;
use serde::Serialize;

/// Texts chosen by peers, such as names and methods, are truncated to this length, so that a few long ones can't rotate
/// older lines out of the log. A hash distinguishes truncated texts.
const MAX_TEXT: usize = 256;

/// The caller: the mailbox and role that the broker stamped.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Caller {
    /// The mailbox.
    pub who: String,
    /// The role.
    pub role: Option<String>,
}

/// The target of a request.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Subject {
    /// The MCP server.
    pub server: String,
    /// `tool`, `resource`, `prompt`, `task`, or the method of a request without a name.
    pub kind: String,
    /// The name of the tool or prompt, the URI of the resource, or the id of the task.
    pub name: Option<String>,
    /// Hash of the arguments, see [`crate::argument_hash`].
    pub args: Option<String>,
    /// The id of the request on the bus, which correlates the lines of one call.
    pub request: String,
    /// The trace id of the message's or the request's `traceparent`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The outcome of a call.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CallEnd {
    /// `ok`, `tool_error`, `cancelled`, or the error code; `repeated` if a known answer was sent again, `joined` if it
    /// was the answer of an earlier call.
    pub outcome: String,
    /// Number of deliveries of the request so far.
    pub attempt: u32,
    /// Time that the call waited before it started.
    pub queued_ms: u64,
    /// Time that the call ran.
    pub ran_ms: u64,
    /// Size of the request's params.
    pub request_bytes: u64,
    /// Size of the result.
    pub result_bytes: u64,
}

/// An entry of the log.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// The policy decision on a request.
    Decision {
        /// The caller.
        #[serde(flatten)]
        caller: Caller,
        /// The target of the request.
        #[serde(flatten)]
        subject: Subject,
        /// `allow`, `ask`, `deny`, or `refuse` if it was refused for another reason than the rules.
        effect: String,
        /// The text and position of the rule, or the reason if no rule applied.
        rule: Option<String>,
        /// Error code of the refusal.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// An allowed call has ended.
    Call {
        /// The caller.
        #[serde(flatten)]
        caller: Caller,
        /// The target of the call.
        #[serde(flatten)]
        subject: Subject,
        /// The outcome.
        #[serde(flatten)]
        end: CallEnd,
    },
    /// A connection was accepted or closed.
    Connection {
        /// The agent of the connection.
        #[serde(flatten)]
        caller: Caller,
        /// `accepted` or `closed`.
        state: &'static str,
        /// The reason, if the broker closed the connection.
        code: Option<String>,
    },
    /// Refused requests of one agent within a second, beyond those that get a line each.
    RequestsRefused {
        /// The agent.
        #[serde(flatten)]
        caller: Caller,
        /// Error code.
        code: String,
        /// Number of refusals.
        count: u64,
    },
    /// Refused connections within a second, by code.
    ConnectionsRefused {
        /// Error code.
        code: String,
        /// Number of refusals.
        count: u64,
    },
    /// A host announced a name that belongs to another host, or that the rules don't let it offer.
    NameHeldBack {
        /// The host.
        host: String,
        /// The tool, prompt, or URI.
        name: String,
        /// Why workers don't see it.
        reason: String,
    },
    /// The state of a credential changed.
    Credential {
        /// Its agent.
        agent: String,
        /// `revoked` or `expired`.
        what: String,
    },
    /// Something that an agent began was ended, because its credential was revoked or has expired.
    Ended {
        /// The agent.
        agent: String,
        /// `revoked` or `expired`.
        reason: &'static str,
        /// `agent`, `message`, `call`, `task`; `sent_messages` and `received_messages` count all messages.
        what: &'static str,
        /// The mailbox of the message, or the tool of the call.
        to: Option<String>,
        /// The id of the message or call, if it is known.
        id: Option<String>,
        /// How many there were.
        count: u64,
    },
    /// Refused messages of one sender within a second.
    SendRefused {
        /// The sender.
        #[serde(flatten)]
        caller: Caller,
        /// Recipient of the first one.
        to: String,
        /// Error code.
        code: String,
        /// Number of refusals.
        count: u64,
    },
    /// The state of an approval changed.
    Approval {
        /// Id of the approval.
        id: String,
        /// `parked`, `approved`, `denied`, `expired`, `cancelled`, or `refused` if a decision was not allowed.
        state: &'static str,
        /// The agent that decided or tried to.
        by: Option<Caller>,
        /// The caller that needs the approval.
        #[serde(flatten)]
        caller: Caller,
        /// The target of the request.
        #[serde(flatten)]
        subject: Subject,
    },
    /// The state of a tool's pinned definition changed.
    Pin {
        /// The MCP server.
        server: String,
        /// The tool.
        tool: String,
        /// `first_seen`, `held_back`, `approved`.
        state: &'static str,
        /// Hash of the definition.
        definition: String,
    },
    /// New policy rules apply from here on.
    PolicyReload {},

    // Records about the log itself, written only by this crate.
    #[doc(hidden)]
    Opened { version: &'static str },
    #[doc(hidden)]
    Continued {
        from: String,
        /// Index of the next seal, if the log is sealed.
        #[serde(skip_serializing_if = "Option::is_none")]
        seals: Option<u64>,
    },
    #[doc(hidden)]
    Removed { file: String, last_seq: u64, last_hash: String },
    #[doc(hidden)]
    Recovered { torn_bytes: u64, lost: u64, head_missing: bool },
    #[doc(hidden)]
    Missed { count: u64 },
    #[doc(hidden)]
    Seal { log: String, index: u64, mac: String },
}

impl Record {
    /// Truncates texts that peers can choose.
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self {
            Self::Decision { subject, rule, .. } => {
                subject.truncate();
                rule.iter_mut().for_each(truncate);
            }
            Self::Call { subject, end, .. } => {
                subject.truncate();
                truncate(&mut end.outcome);
            }
            Self::Approval { subject, .. } => subject.truncate(),
            Self::Pin { tool, .. } => truncate(tool),
            Self::SendRefused { to, .. } => truncate(to),
            Self::Ended { to, .. } => to.iter_mut().for_each(truncate),
            _ => {}
        }
        self
    }
}

impl Subject {
    fn truncate(&mut self) {
        truncate(&mut self.kind);
        self.name.iter_mut().for_each(truncate);
    }
}

fn truncate(text: &mut String) {
    if text.len() > MAX_TEXT {
        let (bytes, hash) = (text.len(), sha256_hex(text.as_bytes()));
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push_str(&format!("… ({bytes} bytes, sha256 {hash})"));
    }
}
