//! The broker's memory use for idle connections and mailboxes.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use toolbus_client::{Body, InboxMessage};

use crate::own_broker::{Report, connect, folder, memory, start};

#[derive(Args)]
pub struct IdleOptions {
    /// Number of subscribed connections that stay idle.
    #[arg(long, default_value_t = 2_000)]
    connections: usize,
    /// Number of mailboxes, with one small message each.
    #[arg(long, default_value_t = 20_000)]
    mailboxes: usize,
    /// Few connections and mailboxes: fails only if a figure is missing.
    #[arg(long, conflicts_with_all = ["connections", "mailboxes", "check"])]
    short: bool,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
}

pub async fn run(mut options: IdleOptions) -> anyhow::Result<ExitCode> {
    if options.short {
        (options.connections, options.mailboxes) = (200, 1_000);
    }
    let folder = folder()?;
    let (broker, url, _) = start(folder.path()).await?;
    let mut report = Report::default();
    let sender = connect(&url, "sender").await?;
    sender.status().await.context("warm up the broker")?;

    let before = memory(&broker)?.0;
    let mut clients = Vec::with_capacity(options.connections);
    for number in 0..options.connections {
        let client = connect(&url, &format!("idle-{number}")).await?;
        client.subscribe().await?;
        client.list_connected("nobody").await.context("await the subscription")?;
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
    report.finish(options.check)
}
