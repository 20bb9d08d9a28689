//! `toolbus send`: delivers one message and waits for its receipt.

use super::parse_duration;
use crate::failure::Failure;
use crate::output::{print_error, print_line};
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use clap::Args;
use serde_json::json;
use std::io::Read;
use std::time::Duration;
use toolbus_client::{BrokerClient, Inspect, SendOptions};
use toolbus_protocol::{AgentRef, Body, InboxMessage, MsgId};

/// Short, because the broker answers from memory.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

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
    let recipient = Recipient::of(&client, &args.to).await;
    client.close().await;
    if recipient.is_unknown {
        print_error(format_args!(
            "warning: no agent has the name {:?}, so the message waits until one is added; `toolbus agent list` shows the \
             agents",
            args.to
        ));
    }
    if args.reach.json {
        let connected = recipient.is_connected;
        return print_line(&json!({"delivered": id.as_str(), "to": args.to, "connected": connected}).to_string());
    }
    print_line(&match recipient.is_connected {
        Some(true) => format!("delivered {id} to {}", args.to),
        Some(false) => format!("stored {id} for {}, which is not connected", args.to),
        None => format!("stored {id} for {}", args.to),
    })
}

/// The state of the recipient, as far as the sender may know it.
#[derive(Default)]
struct Recipient {
    is_connected: Option<bool>,
    is_unknown: bool,
}

impl Recipient {
    async fn of(client: &BrokerClient, name: &str) -> Self {
        let inspect = Inspect { peers: vec![name.into()], ..Inspect::default() };
        let inspecting = tokio::time::timeout(INSPECT_TIMEOUT, client.inspect(inspect));
        // The receipt is there, so that an error changes nothing: only operators and hosts may ask.
        let Ok(Ok(inspected)) = inspecting.await else { return Self::default() };
        let is_unknown = inspected.unknown.first() == Some(&true);
        Self { is_connected: inspected.peers.first().copied(), is_unknown }
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
