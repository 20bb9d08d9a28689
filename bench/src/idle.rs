//! What connections and mailboxes cost the broker while nothing happens in them.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use toolbus_client::{Body, InboxMessage};

use crate::own_broker::{Report, connect, folder, memory, start};

#[derive(Args)]
pub struct IdleOptions {
    /// Subscribed connections that stay silent.
    #[arg(long, default_value_t = 2_000)]
    connections: usize,
    /// Mailboxes with one small message each.
    #[arg(long, default_value_t = 20_000)]
    mailboxes: usize,
    /// Fail if a goal is short.
    #[arg(long)]
    check: bool,
}

pub async fn run(options: IdleOptions) -> anyhow::Result<ExitCode> {
    let folder = folder()?;
    let (broker, url, _) = start(folder.path()).await?;
    let mut report = Report::default();
    let sender = connect(&url, "sender").await?;
    sender.status().await.context("the broker is warm")?;

    let before = memory(&broker)?.0;
    let mut clients = Vec::with_capacity(options.connections);
    for number in 0..options.connections {
        let client = connect(&url, &format!("idle-{number}")).await?;
        client.subscribe().await?;
        client.list_connected("nobody").await.context("the subscription stands")?;
        clients.push(client);
    }
    let each = |now: f64, before: f64, count: usize| (now - before) * 1024.0 / count as f64;
    let connected = memory(&broker)?.0;
    report.check("an idle connection", each(connected, before, options.connections), 20.0, "KiB");

    for number in 0..options.mailboxes {
        let message = InboxMessage::new(sender.me(), "task", Body::null());
        sender.deliver(&format!("mailbox-{number}"), message).await?;
    }
    let filled = memory(&broker)?.0;
    report.check("an idle mailbox", each(filled, connected, options.mailboxes), 1.0, "KiB");
    broker.stop().await?;
    Ok(report.finish(options.check))
}
