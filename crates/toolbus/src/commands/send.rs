//! `toolbus send`: delivers one message and waits for its receipt.

use super::parse_duration;
use crate::failure::Failure;
use crate::output::print_line;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use clap::Args;
use std::io::Read;
use std::time::Duration;
use toolbus_client::SendOptions;
use toolbus_protocol::{AgentRef, Body, InboxMessage, MsgId};

#[derive(Args)]
pub struct SendArgs {
    /// The agent to send to.
    #[arg(long, value_name = "NAME")]
    to: String,
    /// The kind of the message, such as task or note.
    #[arg(long, default_value = "task")]
    kind: String,
    /// The body as JSON; `-` reads it from standard input.
    #[arg(long, default_value = "null", value_name = "JSON|-")]
    body: String,
    /// The id of the message, its idempotency key: the same message with the same id is stored only once.
    #[arg(long)]
    id: Option<String>,
    /// The sender's mailbox. Default: a new mailbox of the credential's agent.
    #[arg(long = "as", value_name = "NAME")]
    sender: Option<String>,
    /// Deadline of the message, such as 30s: it is not delivered after that. Default: none.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    deadline: Option<Duration>,
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: SendArgs) -> Result<(), Failure> {
    let body = read_body(args.body)?;
    let me = args.sender.map_or_else(|| transient_agent(None), AgentRef::new);
    let client = args.reach.connect(LocalAgent::Operator, me.clone(), true).await?;
    let mut message = InboxMessage::new(me, args.kind, body);
    if let Some(id) = args.id {
        message.id = MsgId::from(id);
    }
    let id = client.deliver_with(&args.to, message, SendOptions { deadline: args.deadline }).await?;
    client.close().await;
    if args.reach.json {
        print_line(&serde_json::json!({"delivered": id.as_str(), "to": args.to}).to_string())
    } else {
        print_line(&format!("delivered {id} to {}", args.to))
    }
}

fn read_body(argument: String) -> Result<Body, Failure> {
    let mut text = argument;
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(Failure::Stdin)?;
    }
    Ok(Body::parse(text.trim().to_owned())?)
}
