//! Free-form questions between agents: `ask` with a deadline, `answer` by the recipient.

use crate::BrokerResult;
use crate::client::BrokerClient;
use crate::mux::MultiplexedClient;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

/// Whether an `ask` only queries the other agent or also steers its ongoing work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskMode {
    /// Only an answer is wanted.
    #[default]
    Query,
    /// The question also steers the recipient's ongoing work.
    Steer,
}

/// The body of an `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The question, as text.
    pub question: String,
    /// Query or steer; a missing field means query.
    #[serde(default)]
    pub mode: AskMode,
}

/// The body of a `reply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer, as text.
    pub answer: String,
}

impl MultiplexedClient {
    /// Asks another agent and waits for its answer. A timeout or a dropped future cancels the request at the recipient.
    pub async fn ask(&self, to: &str, question: impl Into<String>, timeout: Duration) -> BrokerResult<String> {
        self.ask_in_mode(to, question, AskMode::Query, timeout).await
    }

    /// Like [`MultiplexedClient::ask`], in a mode.
    pub async fn ask_in_mode(
        &self,
        to: &str,
        question: impl Into<String>,
        mode: AskMode,
        timeout: Duration,
    ) -> BrokerResult<String> {
        let body = Body::of(&Ask { question: question.into(), mode })?;
        let reply = self.request(to, InboxKind::Ask, body, timeout).await?;
        Ok(reply.body.to::<Reply>()?.answer)
    }
}

impl BrokerClient {
    /// Answers an `ask` and acknowledges it atomically.
    pub async fn answer(&self, ask: &InboxMessage, answer: impl Into<String>) -> BrokerResult<MsgId> {
        let body = Body::of(&Reply { answer: answer.into() })?;
        self.reply(ask, InboxKind::Reply, body).await
    }
}
