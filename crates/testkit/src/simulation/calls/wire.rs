//! Bodies of messages: calls, cancels and answers.

use super::oracle::RunNo;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_call::{Answer, Failure};
use toolbus_journal::CallKey;

/// The deadline of a call whose client sets none, in milliseconds: longer than any run.
pub const LONGEST_CALL: u64 = 3_600_000;

/// A tool call. Tools with odd numbers are replay-safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    pub server: usize,
    pub tool: u64,
    pub argument: u64,
    /// The call runs as a task.
    pub task: bool,
    /// The call belongs to the session of its worker.
    pub session: bool,
}

impl Work {
    pub fn is_replay_safe(self) -> bool {
        self.tool % 2 == 1
    }

    /// Whether it crashes its host, if the plan enables that.
    pub fn crashes_host(self) -> bool {
        self.tool == 3 && self.argument == 0
    }

    /// The content that a repeated id must match, and that calls must share to be joined.
    pub fn content(self) -> [u8; 32] {
        let mut content = [0; 32];
        content[..8].copy_from_slice(&self.tool.to_le_bytes());
        content[8..16].copy_from_slice(&self.argument.to_le_bytes());
        content[16] = u8::from(self.task);
        content[17] = self.server as u8;
        content
    }

    pub fn tool_name(self) -> ByteString {
        ByteString::from(format!("tool{}", self.tool))
    }
}

/// A message to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost {
    Call {
        work: Work,
        sent_at: u64,
    },
    /// The caller cancels a call by its id.
    Cancel {
        id: ByteString,
    },
}

impl ToHost {
    pub fn body(&self) -> Bytes {
        Bytes::from(match self {
            Self::Call { work: Work { server, tool, argument, task, session }, sent_at } => {
                format!("call {server} {tool} {argument} {} {} {sent_at}", u8::from(*task), u8::from(*session))
            }
            Self::Cancel { id } => format!("cancel {id}"),
        })
    }

    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(body).ok()?.split(' ');
        match words.next()? {
            "call" => {
                let mut number = || words.next()?.parse::<u64>().ok();
                let (server, tool, argument) = (number()? as usize, number()?, number()?);
                let (task, session, sent_at) = (number()? == 1, number()? == 1, number()?);
                Some(Self::Call { work: Work { server, tool, argument, task, session }, sent_at })
            }
            "cancel" => Some(Self::Cancel { id: words.next()?.into() }),
            _ => None,
        }
    }
}

/// The outcome of a call: the answer of a server or of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The result of that run of the tool.
    Result(RunNo),
    /// That run failed.
    Failed(RunNo),
    /// The server ended during that run.
    Died(RunNo),
    /// The server can't be reached, or did not take the request.
    Unreachable,
    /// Refused by the host without the server.
    NoSession,
    /// Refused by the policy.
    Denied,
    /// Refused by an approver.
    Disapproved,
    Cancelled,
    /// The task was accepted; its result is queried later.
    Accepted,
    /// Decided by the machine.
    Failure(&'static str),
}

pub const UNKNOWN: Outcome = Outcome::Failure("outcome unknown");
pub const JOINED_CANCELLED: Outcome = Outcome::Failure("joined call cancelled");
pub const RESULT_NOT_JOURNALED: Outcome = Outcome::Failure("result not journaled");
pub const NOT_JOURNALED: Outcome = Outcome::Failure("not journaled");
/// The answer of a worker to a fail-fast call.
pub const HOST_OFFLINE: Outcome = Outcome::Failure("host offline");
pub const CRASHED: Outcome = Outcome::Failure("crashed");
pub const POISONED: Outcome = Outcome::Failure("poisoned");
pub const CALLER_GONE: Outcome = Outcome::Failure("caller gone");
pub const CANCELLED: Outcome = Outcome::Failure("cancelled by an operator");
pub const UNREADABLE: Outcome = Outcome::Failure("unreadable");

impl Outcome {
    /// Whether it says that no server received the call.
    pub fn says_not_run(self) -> bool {
        match self {
            Self::Unreachable | Self::NoSession | Self::Denied | Self::Disapproved => true,
            Self::Failure(name) => matches!(
                name,
                "not approved"
                    | "needs approval"
                    | "too many calls"
                    | "too many tasks"
                    | "rate limited"
                    | "tripped"
                    | "not journaled"
                    | "id conflict"
                    | "host offline"
            ),
            _ => false,
        }
    }

    /// Whether it says that the result is not known, although there may be one.
    pub fn is_unknown(self) -> bool {
        [UNKNOWN, RESULT_NOT_JOURNALED, CRASHED, UNREADABLE].contains(&self)
    }

    /// Whether another call may share it.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Cancelled | Self::Accepted)
    }
}

/// An answer as its caller receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireAnswer {
    pub outcome: Outcome,
    /// The id of the call that was run: another one if this call was joined.
    pub of: ByteString,
    pub joined: bool,
}

impl WireAnswer {
    pub fn own(key: &CallKey, outcome: Outcome) -> Self {
        Self { outcome, of: key.id.clone(), joined: false }
    }

    pub fn new(key: &CallKey, answer: &Answer<Outcome>) -> Self {
        let of = |other: &CallKey, outcome| Self { outcome, of: other.id.clone(), joined: other != key };
        match answer {
            Answer::Given(outcome) => Self::own(key, *outcome),
            Answer::Joined { to, answer, .. } => of(to, *answer),
            // No simulated caller takes calls back.
            Answer::Cancelled | Answer::HandedBack => Self::own(key, Outcome::Cancelled),
            Answer::Failure(failure) => match failure {
                Failure::OutcomeUnknown(start) => of(&start.key, UNKNOWN),
                Failure::JoinedCancelled(start) => of(&start.key, JOINED_CANCELLED),
                other => Self::own(key, Outcome::Failure(name_of(other))),
            },
        }
    }
}

fn name_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::OutcomeUnknown(_) => "outcome unknown",
        Failure::JoinedCancelled(_) => "joined call cancelled",
        Failure::Unreadable(_) => "unreadable",
        Failure::Poisoned { .. } => "poisoned",
        Failure::Crashed => "crashed",
        Failure::BrokenInvariant(_) => "broken invariant",
        Failure::Expired => "expired",
        Failure::TimeLimit(_) => "time limit",
        Failure::Timeout => "timeout",
        Failure::CallerGone => "caller gone",
        Failure::Cancelled(_) => "cancelled by an operator",
        Failure::NotApproved => "not approved",
        Failure::NeedsApproval => "needs approval",
        Failure::TooManyCalls => "too many calls",
        Failure::TooManyTasks { .. } => "too many tasks",
        Failure::RateLimited { .. } => "rate limited",
        Failure::Tripped(_) => "tripped",
        Failure::IdConflict { .. } => "id conflict",
        Failure::NotJournaled(_) => "not journaled",
        Failure::ResultNotJournaled(_) => "result not journaled",
    }
}

/// Encodes answers as their numbers in a list: equal answers have equal bodies, as with any serialisation.
#[derive(Default)]
pub struct Codebook(Vec<WireAnswer>);

impl Codebook {
    pub fn encode(&mut self, answer: &WireAnswer) -> Bytes {
        let number = self.0.iter().rposition(|known| known == answer).unwrap_or_else(|| {
            self.0.push(answer.clone());
            self.0.len() - 1
        });
        Bytes::from(format!("answer {number}"))
    }

    pub fn decode(&self, body: &[u8]) -> Option<WireAnswer> {
        let number = std::str::from_utf8(body).ok()?.strip_prefix("answer ")?;
        self.0.get(number.parse::<usize>().ok()?).cloned()
    }
}
