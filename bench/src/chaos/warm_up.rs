//! Before the storm: waits until a call of each tool has its result, so that what counts begins with a system that works.

use std::time::Duration;

use anyhow::{Context, bail};

use super::{
    answer::{Answer, Outcome},
    client::Session,
    site::{Site, Tool},
};

const LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Calls of the warm-up begin so; they don't count.
pub const PREFIX: &str = "warm";

pub async fn until_all_tools_answer(site: &Site) -> anyhow::Result<()> {
    let mut tools = site.tools().to_vec();
    tools.dedup();
    let mut last = String::from("no answer");
    let warm = async {
        for tool in tools {
            for attempt in 0.. {
                match tokio::time::timeout(ANSWER_LIMIT, one_call(site, tool, attempt)).await {
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
        bail!("no call gets through: {last}; the logs are beside {}", site.log("host").display());
    }
    Ok(())
}

/// From a worker process of its own, of the modern era: no session needs to be opened.
async fn one_call(site: &Site, tool: Tool, attempt: u32) -> anyhow::Result<Answer> {
    let mut session = Session::start(site, 0)?;
    let id = format!("{PREFIX}-{}-{attempt}", tool.name());
    let answer = session.ask(tool, &id).await;
    session.end().await;
    answer.context("ask a worker")
}
