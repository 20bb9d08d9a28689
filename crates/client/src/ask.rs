//! Questions between agents: `ask` with a deadline, `answer` by whoever is asked.

use crate::client::BrokerClient;
use crate::error::BrokerResult;
use crate::mux::MultiplexedClient;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

/// Whether the question wants an answer only, or also steers the work that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskMode {
    #[default]
    Query,
    Steer,
}

/// The body of an `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub question: String,
    #[serde(default)]
    pub mode: AskMode,
}

/// The body of a `reply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub answer: String,
}

impl MultiplexedClient {
    /// Asks another agent and waits for its answer. Cancelled there when the time is up or the caller loses interest.
    pub async fn ask(&self, to: &str, question: impl Into<String>, timeout: Duration) -> BrokerResult<String> {
        let body = Body::of(&Ask { question: question.into(), mode: AskMode::Query })?;
        let reply = self.request(to, InboxKind::Ask, body, timeout).await?;
        Ok(reply.body.to::<Reply>()?.answer)
    }
}

impl BrokerClient {
    /// Answers an `ask` and acknowledges it, as one step.
    pub async fn answer(&self, ask: &InboxMessage, answer: impl Into<String>) -> BrokerResult<MsgId> {
        let body = Body::of(&Reply { answer: answer.into() })?;
        self.reply(ask, InboxKind::Reply, body).await
    }
}
