//! What is written down. Arguments and results never are: a hash and a size stand for them.

use crate::canonical::sha256_hex;
use serde::Serialize;

/// What others may choose, such as names and methods, is cut to this, so that nobody can push older lines out of the log
/// with a few long ones. A hash tells what was cut apart.
const MAX_TEXT: usize = 256;

/// Who asks: the mailbox and role that the broker stamped.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Caller {
    pub who: String,
    pub role: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Subject {
    pub server: String,
    /// `tool`, `resource`, `prompt`, or the method of what has no name.
    pub kind: String,
    pub name: Option<String>,
    /// See [`crate::argument_hash`].
    pub args: Option<String>,
    /// The id of the request on the bus: ties the lines of one call together.
    pub request: String,
    /// Of the request's `traceparent`, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// How a call went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CallEnd {
    /// `ok`, `tool_error`, `cancelled`, or the code of the error; `repeated` where the same answer was sent once more, `joined`
    /// where it was an earlier call's.
    pub outcome: String,
    /// How often the request was delivered so far.
    pub attempt: u32,
    pub queued_ms: u64,
    pub ran_ms: u64,
    pub request_bytes: u64,
    pub result_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// What the rules say to a request.
    Decision {
        #[serde(flatten)]
        caller: Caller,
        #[serde(flatten)]
        subject: Subject,
        /// `allow`, `ask`, `deny`, or `refuse` where it is not the rules that refuse.
        effect: String,
        /// The rule's own words and where they stand, or why without a rule.
        rule: Option<String>,
        /// Of the refusal.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// A call that was let through has ended.
    Call {
        #[serde(flatten)]
        caller: Caller,
        #[serde(flatten)]
        subject: Subject,
        #[serde(flatten)]
        end: CallEnd,
    },
    Connection {
        #[serde(flatten)]
        caller: Caller,
        /// `accepted` or `closed`.
        state: &'static str,
        code: Option<String>,
    },
    /// More refused requests of one agent within a second than are worth a line each.
    RequestsRefused {
        #[serde(flatten)]
        caller: Caller,
        code: String,
        count: u64,
    },
    /// Refused connections of one second, by code.
    ConnectionsRefused { code: String, count: u64 },
    /// Something happened to a credential: `revoked`, `expired`.
    Credential { agent: String, what: String },
    /// Messages of one agent that were refused within a second; `to` is of the first.
    SendRefused {
        #[serde(flatten)]
        caller: Caller,
        to: String,
        code: String,
        count: u64,
    },
    Approval {
        id: String,
        /// `parked`, `approved`, `denied`, `expired`, `cancelled`.
        state: &'static str,
        by: Option<Caller>,
        #[serde(flatten)]
        caller: Caller,
        #[serde(flatten)]
        subject: Subject,
    },
    Pin {
        server: String,
        tool: String,
        /// `first_seen`, `held_back`, `approved`.
        state: &'static str,
        definition: String,
    },
    /// Other rules are in force from here on.
    PolicyReload {},

    // The log about itself; only it writes these.
    #[doc(hidden)]
    Opened { version: &'static str },
    #[doc(hidden)]
    Continued { from: String },
    #[doc(hidden)]
    Removed { file: String, last_seq: u64, last_hash: String },
    #[doc(hidden)]
    Recovered { torn_bytes: u64, lost: u64, head_missing: bool },
    #[doc(hidden)]
    Missed { count: u64 },
}

impl Record {
    /// With no text longer than it may be.
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self {
            Self::Decision { subject, rule, .. } => {
                subject.cut();
                rule.iter_mut().for_each(cut);
            }
            Self::Call { subject, end, .. } => {
                subject.cut();
                cut(&mut end.outcome);
            }
            Self::Approval { subject, .. } => subject.cut(),
            Self::Pin { tool, .. } => cut(tool),
            Self::SendRefused { to, .. } => cut(to),
            _ => {}
        }
        self
    }
}

impl Subject {
    fn cut(&mut self) {
        cut(&mut self.kind);
        self.name.iter_mut().for_each(cut);
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        let (bytes, hash) = (text.len(), sha256_hex(text.as_bytes()));
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push_str(&format!("… ({bytes} bytes, sha256 {hash})"));
    }
}
