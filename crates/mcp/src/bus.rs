//! The message bodies by which workers and hosts exchange MCP over the bus: `mcp_request`, `mcp_reply` and `mcp_event`.
//!
//! A request is self-contained: it has the server, the worker's session and the client's `initialize`. A restarted host
//! can therefore reopen a legacy session transparently.

use crate::{AdminRequest, Era, Id, Outcome, Raw, TaskView, TaskWish};
use serde::{Deserialize, Serialize};

/// Identifies one client's use of a server. A legacy server has one session per key.
pub type SessionKey = String;

/// How a client introduced itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientHello {
    /// The client's era.
    pub era: Era,
    /// The unmodified `initialize` params of a legacy client. A modern client describes itself in the `_meta` of each
    /// request, but not of its notifications; with those, the params that stand for its last request are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Raw>,
}

impl ClientHello {
    /// A legacy client with the params of its `initialize`.
    pub fn legacy(initialize: Raw) -> Self {
        Self { era: Era::Legacy, initialize: Some(initialize) }
    }

    /// A modern client.
    pub fn modern() -> Self {
        Self { era: Era::Modern, initialize: None }
    }
}

/// A request, worker → host.
#[derive(Debug, Clone)]
pub enum HostRequest {
    /// A client's request.
    Rpc(Rpc),
    /// Asks whether the host knows an equal call of another mailbox of the agent, which this one may repeat. Answered by a
    /// [`HostReply`] with `{"known": bool}`; nothing runs.
    Earlier(Rpc),
    /// A client's notification.
    Notify(Notify),
    /// A client's response to a server's request.
    Answer(Answer),
    /// The client is gone; the host may release its session.
    Close {
        /// The session to release.
        session: SessionKey,
    },
    /// Lists the calls that wait for approval. Answered by a [`HostReply`].
    ApprovalsList,
    /// Returns one of them with all of its arguments. Answered by a [`HostReply`].
    ApprovalsShow {
        /// Id of the call.
        id: String,
    },
    /// Approves or rejects one of them. Answered by a [`HostReply`].
    ApprovalsDecide(ApprovalDecision),
    /// An admin query or operation. Answered by a [`HostReply`].
    Admin(AdminRequest),
}

/// A decision about a call. The hash covers server, tool and arguments, so it applies only to the call as it was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalDecision {
    /// Id of the call.
    pub id: String,
    /// Hash of the call as it was shown to the approver.
    pub hash: String,
    /// True to approve, false to reject.
    pub approve: bool,
}

/// One MCP request, answered by a [`HostReply`].
#[derive(Debug, Clone)]
pub struct Rpc {
    /// Name of the server.
    pub server: String,
    /// The client's session.
    pub session: SessionKey,
    /// The client that sends it.
    pub client: ClientHello,
    /// MCP method.
    pub method: String,
    /// Params as raw JSON.
    pub params: Option<Raw>,
    /// Run the call as a task: answered by [`HostReply::Task`] as soon as it is in the journal.
    pub task: Option<TaskWish>,
    /// The sender can run the call at another member of the pool: a host that stops answers [`HostReply::HandedBack`].
    pub hand_back: bool,
}

/// A notification of the client. In `notifications/cancelled`, `requestId` is the bus id of the call.
#[derive(Debug, Clone)]
pub struct Notify {
    /// Name of the server.
    pub server: String,
    /// The client's session.
    pub session: SessionKey,
    /// The client that sends it.
    pub client: ClientHello,
    /// MCP method.
    pub method: String,
    /// Params as raw JSON.
    pub params: Option<Raw>,
}

/// The client's response to a request of the server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Name of the server.
    pub server: String,
    /// The client's session.
    pub session: SessionKey,
    /// The id from the [`HostEvent::Request`].
    pub id: Id,
    /// The client's result or error.
    pub outcome: Outcome,
}

/// The reply to a request, host → worker.
#[derive(Debug, Clone)]
pub enum HostReply {
    /// The result or error of the request.
    Rpc(Outcome),
    /// The call became a task.
    Task(Box<TaskView>),
    /// The call was cancelled before the server answered; the client gets no response.
    Cancelled,
    /// The host stops. It has not run the call, or the call may run twice; it never runs it again. Only for requests with
    /// `hand_back`.
    HandedBack,
}

/// An event during a call or outside of any, host → worker. Its correlation id is the id of the call, or the session if
/// it belongs to no call.
#[derive(Debug, Clone)]
pub enum HostEvent {
    /// A notification of the server, sent on the live lane.
    Notification {
        /// Name of the server.
        server: String,
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// A request of the server to the client. Sent as a durable message, because the server waits for the response.
    Request {
        /// Name of the server.
        server: String,
        /// Id to use in the [`Answer`].
        id: Id,
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// The session at the host ended: the server exited, was restarted, or was idle too long.
    Closed {
        /// Name of the server.
        server: String,
        /// Why the session ended.
        reason: String,
    },
}

/// The body of a message is not valid MCP over the bus.
#[derive(Debug, thiserror::Error)]
#[error("not a valid body of MCP over the bus: {reason}")]
pub struct BusBodyError {
    /// Description of the problem.
    pub reason: String,
}
