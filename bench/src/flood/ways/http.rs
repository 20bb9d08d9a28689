//! Floods of requests to the HTTP endpoint.

use crate::{
    flood::{deployment::LEGACY_TOOL, hostile::Agent},
    mcp::{Era, connection::Connection},
};

/// What is done with each session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// A call of a tool.
    Call,
    Leave,
    End,
}

/// Opens one session after the other.
pub async fn sessions(agent: &Agent, then: Then) -> anyhow::Result<()> {
    let connection = Connection::http(&agent.endpoint(), Some(agent.token.clone()), Era::Legacy);
    loop {
        agent.pacer.wait().await;
        let Some(session) = connection.another_session() else { return Ok(()) };
        agent.tally.sent();
        let outcome = match (session.open().await, then) {
            (Ok(()), Then::Call) => session.echo_by(LEGACY_TOOL, "denied").await,
            (Ok(()), Then::End) => session.end_session().await,
            (outcome, _) => outcome,
        };
        match outcome {
            Ok(()) => agent.tally.count("ok"),
            Err(error) => agent.tally.error(&error),
        }
    }
}
