//! Connections with bad credentials: the broker refuses each of them and keeps no memory for it.

use std::{
    fs,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use tokio::task::JoinSet;
use toolbus_client::{AgentRef, BrokerClient, BrokerError, ClientOptions};

use crate::own_broker::{Report, folder, memory, start_with};

#[derive(Args)]
pub struct StrangersOptions {
    /// Number of attempts with bad credentials of several kinds.
    #[arg(long, default_value_t = 100_000)]
    attempts: usize,
    /// Number of concurrent attempts.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
    /// Few attempts: fails only if one is not refused.
    #[arg(long, conflicts_with_all = ["attempts", "check"])]
    short: bool,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
}

pub async fn run(mut options: StrangersOptions) -> anyhow::Result<ExitCode> {
    if options.short {
        (options.attempts, options.at_once) = (1_000, 8);
    }
    let folder = folder()?;
    let (broker, url, _) = start_with(folder.path(), &[]).await?;
    let token = fs::read_to_string(folder.path().join("data/token")).context("read the local token")?;
    let token = token.trim().to_owned();
    let valid = BrokerClient::connect(&url, AgentRef::new("~"), &token).await.context("connect with a valid token")?;
    let attempts = Arc::new(Attempts { url, bad: bad_credentials(&token), next: AtomicUsize::new(0) });

    // Warms up the allocator, whose one-time growth must not count.
    attempts.make(options.at_once * 100, options.at_once).await?;
    let before = memory(&broker)?.0;
    let begin = Instant::now();
    attempts.make(options.attempts, options.at_once).await?;
    let took = begin.elapsed();
    let after = memory(&broker)?.0;
    ensure!(valid.reader_alive(), "the agent with a valid token lost its connection");

    let mut report = Report::default();
    report.rate("refused", options.attempts as f64 / took.as_secs_f64());
    report.check_change("memory growth", (after - before).max(0.0), 8.0, "MiB");
    broker.stop().await?;
    report.finish(options.check)
}

struct Attempts {
    url: String,
    bad: Vec<(&'static str, String)>,
    next: AtomicUsize,
}

impl Attempts {
    async fn make(self: &Arc<Self>, count: usize, at_once: usize) -> anyhow::Result<()> {
        self.next.store(0, Ordering::Relaxed);
        let mut workers = JoinSet::new();
        for _ in 0..at_once {
            let attempts = Arc::clone(self);
            workers.spawn(async move { attempts.work(count).await });
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok(())
    }

    async fn work(&self, count: usize) -> anyhow::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let (name, token) = &self.bad[number % self.bad.len()];
            let options = ClientOptions { reconnect: false, ..ClientOptions::default() };
            match BrokerClient::connect_with(&self.url, AgentRef::new(*name), token, options).await {
                Err(BrokerError::Auth { .. }) => {}
                // The limit on unauthenticated connections was reached.
                Err(BrokerError::Transport(_) | BrokerError::Busy { .. }) => {
                    tokio::time::sleep(Duration::from_millis(1)).await
                }
                Err(error) => anyhow::bail!("attempt {number} ended with {error}"),
                Ok(_) => anyhow::bail!("attempt {number} was accepted as {name}"),
            }
        }
    }
}

/// Names and tokens of which no pair is valid.
fn bad_credentials(token: &str) -> Vec<(&'static str, String)> {
    let changed = |at: usize| {
        let mut bytes = token.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
        String::from_utf8(bytes).expect("a token is ASCII")
    };
    let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJsb2NhbCIsInJvbGUiOiJvcGVyYXRvciJ9.";
    vec![
        ("~", String::new()),
        ("~", "x".to_owned()),
        ("~", changed(token.len() - 1)),
        ("~", changed(4)),
        ("~", token[..token.len() - 1].to_owned()),
        ("~", format!("{token}0")),
        ("~", token[..token.len() / 2].to_owned()),
        ("~", unsigned.to_owned()),
        ("~", "tb_".to_owned()),
        ("~", format!("tb_{}", "x".repeat(40_000))),
        // A valid token with another agent's name.
        ("operator", token.to_owned()),
        ("host", token.to_owned()),
    ]
}
