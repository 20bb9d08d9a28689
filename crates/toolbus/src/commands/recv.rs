//! `toolbus recv`: prints the messages of a mailbox and acknowledges them.

use super::parse_duration;
use crate::failure::Failure;
use crate::output::print_line;
use crate::reach::{LocalAgent, ReachArgs, in_role};
use clap::Args;
use std::time::Duration;
use toolbus_broker::OWN_NAME;
use toolbus_client::BrokerClient;
use toolbus_protocol::{AgentRef, InboxMessage, MsgId};

#[derive(Args)]
pub struct RecvArgs {
    /// The mailbox to read. Default: that of the credential's agent.
    #[arg(long = "as", value_name = "NAME", default_value = OWN_NAME, hide_default_value = true)]
    name: String,
    /// Role to act in.
    #[arg(long)]
    role: Option<String>,
    /// Keep printing new messages. Without it, only the queued messages are printed.
    #[arg(long)]
    follow: bool,
    /// Leave the messages in the mailbox: don't acknowledge them.
    #[arg(long)]
    no_ack: bool,
    /// Without --follow: exit if no message arrives for this time.
    #[arg(long, value_parser = parse_duration, default_value = "500ms", value_name = "DURATION")]
    wait: Duration,
    /// Exit after this many messages.
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: RecvArgs) -> Result<(), Failure> {
    let me = in_role(AgentRef::new(args.name.clone()), args.role.clone());
    let client = args.reach.connect(LocalAgent::Operator, me, args.follow).await?;
    client.subscribe().await?;
    let mut last = None;
    let mut count = 0;
    while args.max.is_none_or(|max| count < max) {
        let Some(message) = next(&client, &args).await else { break };
        print_message(&message, args.reach.json)?;
        count += 1;
        if !args.no_ack {
            // After printing, so that a message that could not be printed stays in the mailbox.
            client.ack(message.id.clone()).await?;
            last = Some(message.id);
        }
    }
    finish(&client, last).await
}

async fn next(client: &BrokerClient, args: &RecvArgs) -> Option<InboxMessage> {
    if args.follow {
        tokio::select! {
            message = client.next_message() => message,
            _ = tokio::signal::ctrl_c() => None,
        }
    } else {
        tokio::time::timeout(args.wait, client.next_message()).await.ok().flatten()
    }
}

/// Waits until the last acknowledgement is durable; the ones before it are then durable too.
async fn finish(client: &BrokerClient, last: Option<MsgId>) -> Result<(), Failure> {
    if let Some(last) = last {
        client.ack_confirmed(last).await?;
    }
    Ok(())
}

fn print_message(message: &InboxMessage, json: bool) -> Result<(), Failure> {
    let body = String::from_utf8_lossy(message.body.as_bytes());
    let id = message.id.as_str();
    let from = &*message.from.session_id;
    let kind = message.kind.as_str();
    if !json {
        return print_line(&format!("{} {kind} from {from} {id}\n  {body}", message.created_at));
    }
    let head = serde_json::json!({
        "id": id,
        "from": {"session_id": from, "role": message.from.role.as_deref()},
        "kind": kind,
        "created_at": message.created_at.to_string(),
        "correlation_id": message.correlation_id.as_ref().map(MsgId::as_str),
    });
    let head = head.to_string();
    let open = head.strip_suffix('}').unwrap_or(&head);
    // The body is inserted as raw text, because parsing it could change numbers.
    print_line(&format!("{open},\"body\":{body}}}"))
}
