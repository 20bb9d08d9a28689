//! A large backlog in one mailbox: the broker's memory, its restart time after a kill, and whether the drain rate
//! depends on the number of remaining messages.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;
use toolbus_client::{Body, InboxMessage};

use crate::own_broker::{Report, connect, folder, memory, start};

const MAILBOX: &str = "backlog";
const IN_FLIGHT: usize = 1024;
const STEP_LIMIT: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct BacklogOptions {
    /// Number of messages in the mailbox.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Size of each message body in bytes.
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// A small backlog: fails only if a figure is missing.
    #[arg(long, conflicts_with_all = ["messages", "check"])]
    short: bool,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
}

pub async fn run(mut options: BacklogOptions) -> anyhow::Result<ExitCode> {
    if options.short {
        options.messages = 5_000;
    }
    let folder = folder()?;
    let mut report = Report::default();

    let (broker, url, _) = start(folder.path()).await?;
    let begin = Instant::now();
    fill(&url, &options).await?;
    report.rate("fill", options.messages as f64 / begin.elapsed().as_secs_f64());
    report.check("memory after the fill", memory(&broker)?.0, 300.0, "MiB");
    broker.stop().await?;

    let (broker, url, ready) = start(folder.path()).await?;
    report.check("restart after a kill, until ready", ready.as_secs_f64(), 5.0, "s");
    report.check("memory after the restart", memory(&broker)?.0, 300.0, "MiB");

    let rates = drain(&url, &options).await?;
    report.check("peak memory since the restart", memory(&broker)?.1, 300.0, "MiB");
    report.rate("drain, first tenth", rates.first);
    report.rate("drain, last tenth", rates.last);
    report.check_change("slowdown from first to last", 100.0 * (1.0 - rates.last / rates.first), 20.0, "%");
    let left = final_size(folder.path()).await?;
    report.check("disk in use after the drain", left, 256.0, "MiB");
    broker.stop().await?;
    report.finish(options.check)
}

async fn fill(url: &str, options: &BacklogOptions) -> anyhow::Result<()> {
    let client = std::sync::Arc::new(connect(url, "filler").await?);
    let body = Body::of(&"x".repeat(options.bytes.saturating_sub(2)))?;
    let progress = bar("fill", options.messages);
    let mut deliveries = JoinSet::new();
    for _ in 0..options.messages {
        if deliveries.len() >= IN_FLIGHT {
            receipt(&mut deliveries, &progress).await?;
        }
        let message = InboxMessage::new(client.me(), "task", body.clone());
        let client = client.clone();
        deliveries.spawn(async move { client.deliver(MAILBOX, message).await });
    }
    while !deliveries.is_empty() {
        receipt(&mut deliveries, &progress).await?;
    }
    progress.finish_and_clear();
    Ok(())
}

async fn receipt<T: 'static>(
    deliveries: &mut JoinSet<Result<T, toolbus_client::BrokerError>>,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let done =
        tokio::time::timeout(STEP_LIMIT, deliveries.join_next()).await.context("timed out waiting for a receipt")?;
    done.context("no delivery is running")?.context("a delivery panicked")?.context("deliver")?;
    progress.inc(1);
    Ok(())
}

struct Rates {
    first: f64,
    last: f64,
}

/// Drains the mailbox and returns the rates of the first and of the last tenth.
async fn drain(url: &str, options: &BacklogOptions) -> anyhow::Result<Rates> {
    let owner = connect(url, MAILBOX).await?;
    owner.subscribe().await?;
    let tenth = (options.messages / 10).max(1);
    let progress = bar("drain", options.messages);
    let mut marks = vec![Instant::now()];
    for count in 1..=options.messages {
        let message =
            tokio::time::timeout(STEP_LIMIT, owner.next_message()).await.context("timed out waiting for a message")?;
        let id = message.context("the broker closed the connection")?.id;
        if count == options.messages {
            owner.ack_confirmed(id).await?;
        } else {
            owner.ack(id).await?;
        }
        if count % tenth == 0 {
            marks.push(Instant::now());
            progress.inc(tenth);
        }
    }
    progress.finish_and_clear();
    ensure!(marks.len() > 2, "too few messages to compare");
    let rate = |from: Instant, to: Instant| tenth as f64 / (to - from).as_secs_f64();
    let last = marks.len() - 1;
    Ok(Rates { first: rate(marks[0], marks[1]), last: rate(marks[last - 1], marks[last]) })
}

/// MiB in the data folder once it has stopped shrinking.
async fn final_size(folder: &Path) -> anyhow::Result<f64> {
    let mut last = f64::MAX;
    for _ in 0..20 {
        let bytes: u64 =
            fs::read_dir(folder.join("data"))?.map(|entry| Ok(entry?.metadata()?.len())).sum::<std::io::Result<_>>()?;
        let mib = bytes as f64 / f64::from(1 << 20);
        if mib >= last {
            return Ok(mib);
        }
        last = mib;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(last)
}

fn bar(label: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:6} {bar:40} {human_pos}/{human_len} {per_sec}");
    ProgressBar::new(length).with_message(label).with_style(style.expect("the template is well formed"))
}
