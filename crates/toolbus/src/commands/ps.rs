//! `toolbus ps`: who is connected, what waits, and for how long.

use super::print_line;
use crate::failure::Failure;
use crate::reach::{LocalAgent, ReachArgs, passing_agent};
use crate::table::{age, table};
use clap::Args;
use serde_json::json;
use toolbus_protocol::Status;

#[derive(Args)]
pub struct PsArgs {
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: PsArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, passing_agent(None), false).await?;
    // The name that the credential brought.
    let me = client.me();
    let mut status = client.status().await?;
    status.connections.retain(|connection| connection.agent.session_id != me.session_id);
    client.close().await;
    print_line(&if args.reach.json { as_json(&status) } else { as_table(&status) })
}

fn as_json(status: &Status) -> String {
    let connections = status.connections.iter().map(|c| {
        json!({
            "agent": &*c.agent.session_id, "role": c.agent.role.as_deref(),
            "subscribed": c.subscribed, "connected_ms": c.connected_ms,
        })
    });
    let mailboxes = status.mailboxes.iter().map(|m| {
        json!({
            "name": &*m.name, "messages": m.messages, "bytes": m.bytes,
            "in_flight": m.in_flight, "oldest_ms": m.oldest_ms,
        })
    });
    json!({
        "connections": connections.collect::<Vec<_>>(),
        "mailboxes": mailboxes.collect::<Vec<_>>(),
        "more_mailboxes": status.more_mailboxes,
        "set_aside": status.set_aside,
    })
    .to_string()
}

fn as_table(status: &Status) -> String {
    let mut rows = vec![["AGENT", "ROLE", "CONNECTED", "RECEIVES"].map(str::to_owned)];
    for c in &status.connections {
        rows.push([
            c.agent.session_id.to_string(),
            c.agent.role.as_deref().unwrap_or("-").to_owned(),
            age(c.connected_ms),
            if c.subscribed { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut text = table(&rows, None);
    let mut rows = vec![["MAILBOX", "WAITING", "IN FLIGHT", "BYTES", "OLDEST"].map(str::to_owned)];
    for m in &status.mailboxes {
        rows.push([
            m.name.to_string(),
            (m.messages - m.in_flight).to_string(),
            m.in_flight.to_string(),
            m.bytes.to_string(),
            m.oldest_ms.map_or("-".to_owned(), age),
        ]);
    }
    text.push_str("\n\n");
    text.push_str(&table(&rows, None));
    if status.more_mailboxes > 0 {
        text.push_str(&format!("\nand {} more mailboxes", status.more_mailboxes));
    }
    if status.set_aside > 0 {
        text.push_str(&format!("\n{} damaged records were set aside; see the broker's log", status.set_aside));
    }
    text
}
