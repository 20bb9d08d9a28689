//! The admin API of a host: queries and operations on calls, tasks and dead letters. Each request is a body of its own,
//! answered by a [`crate::HostReply`] whose result is one of the views below.
//!
//! A caller sees the calls and tasks of its own agent. An operator sees all of them.

use crate::Raw;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An admin query or operation, worker → host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum AdminRequest {
    /// Lists calls. Answered by a [`CallList`].
    CallsList {
        /// Whether to include calls that have ended.
        #[serde(default)]
        ended: bool,
    },
    /// Cancels a running call. Answered by a [`CallRow`], or rejected if the call has ended.
    CallsCancel {
        /// Id of the call.
        id: String,
    },
    /// Returns a task. Answered by a [`TaskView`] without its result.
    TaskGet {
        /// Id of the task.
        id: String,
    },
    /// Waits for a task. Answered by a [`TaskView`] when the task has ended or the time limit has passed.
    TaskWait {
        /// Id of the task.
        id: String,
        /// How long to wait, in milliseconds.
        limit_ms: u64,
    },
    /// Lists tasks. Answered by a [`TaskList`].
    TaskList {
        /// Cursor: the `next` of the previous page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Cancels a task. Answered by a [`TaskView`], or rejected if the task has ended.
    TaskCancel {
        /// Id of the task.
        id: String,
    },
    /// Lists dead letters. Answered by a [`DeadList`].
    DeadList,
    /// Returns a dead letter. Answered by a [`DeadLetter`] with its arguments.
    DeadShow {
        /// Id of the dead letter.
        id: String,
    },
    /// Runs a dead letter once more, as a task of its original caller. Answered by a [`TaskView`].
    DeadRetry {
        /// Id of the dead letter.
        id: String,
    },
    /// Removes a dead letter. Answered by the [`DeadLetter`] that was removed.
    DeadDrop {
        /// Id of the dead letter.
        id: String,
    },
}

impl AdminRequest {
    /// The `op` of every variant.
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

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Waiting to be started, or for its host to come online.
    Queued,
    /// Waiting for approval.
    WaitingForApproval,
    /// Running at its server.
    Running,
    /// Ended with a result.
    Done,
    /// Ended with an error.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Outcome unknown: the call was started, and whether it took effect is not known.
    Unknown,
}

/// One call in a [`CallList`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRow {
    /// Id of the call.
    pub id: String,
    /// The agent that made the call.
    pub agent: String,
    /// `None` if only the host knows it and the host is offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Name of the tool; `None` under the same condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// State of the call.
    pub state: CallState,
    /// Time since the call was made, in milliseconds.
    pub age_ms: u64,
    /// How often the call was started at its server or delivered to its host.
    pub attempts: u32,
    /// A remark, for example how many calls joined this one or which call it joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The calls of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallList {
    /// The calls, up to the host's limit.
    pub calls: Vec<CallRow>,
    /// Number of calls left out because of the limit.
    #[serde(default)]
    pub more: u64,
}

/// Requests that a call become a task: it is answered at once and continues on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskWish {
    /// How long to keep the task, counted from its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl TaskWish {
    /// Used if the client gives none.
    pub const DEFAULT_TTL_MS: u64 = 24 * 3600 * 1000;
    /// Larger values are reduced to this.
    pub const LONGEST_TTL_MS: u64 = 7 * 24 * 3600 * 1000;
    /// Smaller values are raised to this, so that a client has time to query the task.
    pub const SHORTEST_TTL_MS: u64 = 1000;

    /// How long the task is kept.
    pub fn granted_ttl_ms(self) -> u64 {
        self.ttl_ms.unwrap_or(Self::DEFAULT_TTL_MS).clamp(Self::SHORTEST_TTL_MS, Self::LONGEST_TTL_MS)
    }
}

/// The name of a task outside its host. Any worker of the agent finds the host by it, even after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskName {
    /// The host that runs the task.
    pub host: String,
    /// The id of the message that started it.
    pub id: String,
}

impl TaskName {
    const PREFIX: &str = "toolbus:";

    /// Returns `None` for the name of a server's own task.
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

/// The status of a task, as defined by MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// The task is running.
    Working,
    /// The task waits for input from its client.
    InputRequired,
    /// The task ended with a result.
    Completed,
    /// The task ended with an error.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// Whether the status is final.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A task owned by the bus. Its id is the id of the message that started it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskView {
    /// Id of the task.
    pub id: String,
    /// The agent that started it.
    pub agent: String,
    /// Name of the server.
    pub server: String,
    /// Name of the tool.
    pub tool: String,
    /// Status of the task.
    pub status: TaskStatus,
    /// The latest status or progress message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Creation time, in milliseconds since the Unix epoch. For display only.
    pub created_ms: u64,
    /// Time of the last change, in milliseconds since the Unix epoch.
    pub updated_ms: u64,
    /// How long the task is kept, in milliseconds.
    pub ttl_ms: u64,
    /// The tool reported a failure (`isError`). The legacy and modern eras map this to different statuses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool_failed: bool,
    /// The result, if it was requested and is available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    /// The error, if it was requested and the task ended with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Raw>,
}

/// A page of tasks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TaskList {
    /// The tasks.
    pub tasks: Vec<TaskView>,
    /// The cursor for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A dead-lettered call: each attempt ended its server or host. It is not run again unless it is retried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Id of the call.
    pub id: String,
    /// The agent that made the call.
    pub agent: String,
    /// Name of the server.
    pub server: String,
    /// Name of the tool.
    pub tool: String,
    /// How often the call was started.
    pub attempts: u32,
    /// When it was dead-lettered, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What happened, one sentence per attempt.
    pub story: Vec<String>,
    /// The params of the call, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Raw>,
}

/// The dead letters of a host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeadList {
    /// The dead letters, up to the host's limit.
    pub letters: Vec<DeadLetter>,
    /// Number of dead letters left out because of the limit.
    #[serde(default)]
    pub more: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_name_is_parsed_back_to_host_and_id() {
        for host in ["attic", "a:b", "host#2"] {
            let name = TaskName { host: host.into(), id: "7c0e".into() };
            assert_eq!(TaskName::parse(&name.to_string()), Some(name));
        }
        for other in ["7c0e", "toolbus:7c0e", "toolbus::7c0e", "toolbus:attic:", "Toolbus:attic:1", ""] {
            assert_eq!(TaskName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_ttl_of_a_task_is_clamped() {
        let check = |ttl_ms, expected| assert_eq!(TaskWish { ttl_ms }.granted_ttl_ms(), expected);
        check(None, TaskWish::DEFAULT_TTL_MS);
        check(Some(60_000), 60_000);
        check(Some(0), TaskWish::SHORTEST_TTL_MS);
        check(Some(u64::MAX), TaskWish::LONGEST_TTL_MS);
    }
}
