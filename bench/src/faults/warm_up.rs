//! Waits until a call of each tool succeeds, so that the measured part starts with a working system.

use std::time::Duration;

use anyhow::{Context, bail};

use super::{
    Tool, Workers,
    answer::{Answer, Outcome},
    client::Session,
};

const LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Prefix of the ids of warm-up calls, which don't count.
pub const PREFIX: &str = "warm";

pub async fn wait_for_all_tools(workers: &dyn Workers) -> anyhow::Result<()> {
    let mut tools = workers.tools().to_vec();
    tools.dedup();
    let mut last = String::from("no answer");
    let warm = async {
        for tool in tools {
            for attempt in 0.. {
                match tokio::time::timeout(ANSWER_LIMIT, one_call(workers, tool, attempt)).await {
                    Ok(Ok(answer)) if answer.outcome == Outcome::Result => break,
                    Ok(Ok(answer)) => last = answer.code.unwrap_or_default(),
                    Ok(Err(error)) => last = format!("{error:#}"),
                    Err(_) => last = "no answer".to_owned(),
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    if tokio::time::timeout(LIMIT, warm).await.is_err() {
        bail!("no call succeeded: {last}");
    }
    Ok(())
}

/// Makes one call with a new worker process; client 0 is modern, so no handshake is needed.
async fn one_call(workers: &dyn Workers, tool: Tool, attempt: u32) -> anyhow::Result<Answer> {
    let mut session = Session::start(workers, 0)?;
    let id = format!("{PREFIX}-{}-{attempt}", tool.name);
    let answer = session.ask(tool, &id).await;
    session.kill().await;
    answer.context("ask a worker")
}
