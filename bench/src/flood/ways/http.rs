//! Floods of requests to the HTTP endpoint.

use crate::{
    flood::{deployment::LEGACY_TOOL, hostile::Agent},
    mcp::{Era, connection::Connection},
};

/// Opens sessions and calls a tool in each.
pub async fn calls(agent: &Agent) -> anyhow::Result<()> {
    each_session(agent, true).await
}

/// Opens sessions and leaves them.
pub async fn sessions(agent: &Agent) -> anyhow::Result<()> {
    each_session(agent, false).await
}

async fn each_session(agent: &Agent, with_call: bool) -> anyhow::Result<()> {
    let connection = Connection::http(&agent.endpoint(), Some(agent.token.clone()), Era::Legacy);
    loop {
        agent.pacer.wait().await;
        let Some(session) = connection.another_session() else { return Ok(()) };
        agent.tally.sent();
        let outcome = match session.open().await {
            Ok(()) if with_call => session.echo_by(LEGACY_TOOL, "denied").await,
            outcome => outcome,
        };
        match outcome {
            Ok(()) => agent.tally.count("ok"),
            Err(error) => agent.tally.error(&error),
        }
    }
}
