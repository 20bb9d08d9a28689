//! What is asked of a host about its calls: which there are, what became of a task, what to do with a dead letter. Each is a
//! body of its own, answered by a [`crate::HostReply`] whose result is one of the views below.
//!
//! Whoever asks sees what is its own: calls and tasks of the same agent. An operator sees them all.

use crate::Raw;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Worker → host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum AdminRequest {
    /// Answered by [`CallList`].
    CallsList {
        /// Those that have ended too.
        #[serde(default)]
        ended: bool,
    },
    /// Answered by a [`CallRow`], or refused if the call has ended.
    CallsCancel { id: String },
    /// Answered by a [`TaskView`] without its answer.
    TaskGet { id: String },
    /// Answered by a [`TaskView`], once the task has ended or that time is over.
    TaskWait { id: String, limit_ms: u64 },
    /// Answered by a [`TaskList`].
    TaskList {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Answered by a [`TaskView`], or refused if the task has ended.
    TaskCancel { id: String },
    /// Answered by a [`DeadList`].
    DeadList,
    /// Answered by a [`DeadLetter`] with its arguments.
    DeadShow { id: String },
    /// Runs it once more, as a task of whoever called. Answered by a [`TaskView`].
    DeadRetry { id: String },
    /// Answered by the [`DeadLetter`] that was dropped.
    DeadDrop { id: String },
}

impl AdminRequest {
    pub const OPS: [&str; 10] = [
        "calls_list",
        "calls_cancel",
        "task_get",
        "task_wait",
        "task_list",
        "task_cancel",
        "dead_list",
        "dead_show",
        "dead_retry",
        "dead_drop",
    ];
}

/// What a call is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// It waits for its turn, or for its host.
    Queued,
    WaitingForApproval,
    Running,
    Done,
    Failed,
    Cancelled,
    /// Begun, and nobody knows whether it had its effect.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRow {
    pub id: String,
    pub agent: String,
    /// Absent where nobody but the host could tell, and it is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    pub state: CallState,
    pub age_ms: u64,
    /// How often it was begun, or brought to its host.
    pub attempts: u32,
    /// How many others it joined, or which call it was joined to, and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallList {
    pub calls: Vec<CallRow>,
    /// Left out because the list has a limit.
    #[serde(default)]
    pub more: u64,
}

/// Wishes a call to be a task: it is answered at once and goes on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskWish {
    /// How long the task is to be remembered, from its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl TaskWish {
    /// Of a task whose client names none.
    pub const DEFAULT_TTL_MS: u64 = 24 * 3600 * 1000;
    /// What a client names beyond it counts as this.
    pub const LONGEST_TTL_MS: u64 = 7 * 24 * 3600 * 1000;
    /// A task that is forgotten before anybody could ask for it is of no use.
    pub const SHORTEST_TTL_MS: u64 = 1000;

    /// How long the task is remembered.
    pub fn granted_ttl_ms(self) -> u64 {
        self.ttl_ms.unwrap_or(Self::DEFAULT_TTL_MS).clamp(Self::SHORTEST_TTL_MS, Self::LONGEST_TTL_MS)
    }
}

/// How a task is called outside of its host: any worker of the agent finds the host by it, after any restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskName {
    pub host: String,
    /// The id of the message that began it.
    pub id: String,
}

impl TaskName {
    const PREFIX: &str = "toolbus:";

    /// None for what some server calls its task.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, id) = text.strip_prefix(Self::PREFIX)?.rsplit_once(':')?;
        (!host.is_empty() && !id.is_empty()).then(|| Self { host: host.to_owned(), id: id.to_owned() })
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}", Self::PREFIX, self.host, self.id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

impl TaskStatus {
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A task that the bus owns. Its id is that of the message that began it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskView {
    pub id: String,
    pub agent: String,
    pub server: String,
    pub tool: String,
    pub status: TaskStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Milliseconds since 1970, to be shown.
    pub created_ms: u64,
    pub updated_ms: u64,
    pub ttl_ms: u64,
    /// The tool itself says that it failed: a result to one era, a failure to the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool_failed: bool,
    /// The answer, where it was asked for and is there: one of the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Raw>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TaskList {
    pub tasks: Vec<TaskView>,
    /// Ask again with it for those that come after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A call that is not run any more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetter {
    pub id: String,
    pub agent: String,
    pub server: String,
    pub tool: String,
    pub attempts: u32,
    pub at_ms: u64,
    /// What happened, a sentence for each attempt.
    pub story: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Raw>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeadList {
    pub letters: Vec<DeadLetter>,
    #[serde(default)]
    pub more: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tasks_name_leads_back_to_its_host() {
        for host in ["attic", "a:b", "host#2"] {
            let name = TaskName { host: host.into(), id: "7c0e".into() };
            assert_eq!(TaskName::parse(&name.to_string()), Some(name));
        }
        for other in ["7c0e", "toolbus:7c0e", "toolbus::7c0e", "toolbus:attic:", "Toolbus:attic:1", ""] {
            assert_eq!(TaskName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_task_lives_as_long_as_is_wished_within_limits() {
        let check = |ttl_ms, expected| assert_eq!(TaskWish { ttl_ms }.granted_ttl_ms(), expected);
        check(None, TaskWish::DEFAULT_TTL_MS);
        check(Some(60_000), 60_000);
        check(Some(0), TaskWish::SHORTEST_TTL_MS);
        check(Some(u64::MAX), TaskWish::LONGEST_TTL_MS);
    }
}
