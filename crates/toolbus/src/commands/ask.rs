//! `toolbus ask`: sends a question to another agent and prints its answer.

use super::parse_duration;
use crate::failure::Failure;
use crate::output::print_line;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub struct AskArgs {
    /// The agent to ask.
    name: String,
    /// The question.
    question: String,
    /// How long to wait for the answer. After that the question is withdrawn.
    #[arg(long, value_parser = parse_duration, default_value = "60s", value_name = "DURATION")]
    timeout: Duration,
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: AskArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, transient_agent(None), true).await?.into_multiplexed();
    let asked = tokio::select! {
        answer = client.ask(&args.name, args.question, args.timeout) => Some(answer),
        _ = tokio::signal::ctrl_c() => None,
    };
    // Closing flushes the withdrawal of an unanswered question.
    client.close().await;
    let Some(answer) = asked else { return Ok(()) };
    let answer = answer?;
    if args.reach.json { print_line(&serde_json::json!({"answer": answer}).to_string()) } else { print_line(&answer) }
}
