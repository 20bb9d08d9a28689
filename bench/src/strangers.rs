//! What peers with bad credentials cost the broker: each is refused, and nothing of it stays.

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
    /// Attempts with bad credentials, of many kinds.
    #[arg(long, default_value_t = 100_000)]
    attempts: usize,
    /// Attempts at the same time.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
    /// Fail if a goal is short.
    #[arg(long)]
    check: bool,
}

pub async fn run(options: StrangersOptions) -> anyhow::Result<ExitCode> {
    let folder = folder()?;
    let (broker, url, _) = start_with(folder.path(), &[]).await?;
    let token = fs::read_to_string(folder.path().join("data/token")).context("read the local token")?;
    let token = token.trim().to_owned();
    let honest = BrokerClient::connect(&url, AgentRef::new("~"), &token).await.context("an honest agent")?;
    let tries = Arc::new(Tries { url, bad: bad_credentials(&token), next: AtomicUsize::new(0) });

    // What the allocator needs once is not what we look for.
    tries.make(options.at_once * 100, options.at_once).await?;
    let before = memory(&broker)?.0;
    let begin = Instant::now();
    tries.make(options.attempts, options.at_once).await?;
    let took = begin.elapsed();
    let after = memory(&broker)?.0;
    ensure!(honest.reader_alive(), "the honest agent lost its connection");

    let mut report = Report::default();
    report.line("refused", format!("{} in {took:.1?}", options.attempts));
    report.check("memory that stays", (after - before).max(0.0), 8.0, "MiB");
    broker.stop().await?;
    Ok(report.finish(options.check))
}

struct Tries {
    url: String,
    bad: Vec<(&'static str, String)>,
    next: AtomicUsize,
}

impl Tries {
    async fn make(self: &Arc<Self>, attempts: usize, at_once: usize) -> anyhow::Result<()> {
        self.next.store(0, Ordering::Relaxed);
        let mut workers = JoinSet::new();
        for _ in 0..at_once {
            let tries = Arc::clone(self);
            workers.spawn(async move { tries.work(attempts).await });
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok(())
    }

    async fn work(&self, attempts: usize) -> anyhow::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= attempts {
                return Ok(());
            }
            let (name, token) = &self.bad[number % self.bad.len()];
            let options = ClientOptions { reconnect: false, ..ClientOptions::default() };
            match BrokerClient::connect_with(&self.url, AgentRef::new(*name), token, options).await {
                Err(BrokerError::Auth { .. }) => {}
                // Too many strangers at the door: the next moment there is room.
                Err(BrokerError::Transport(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => anyhow::bail!("attempt {number} ended with {error}"),
                Ok(_) => anyhow::bail!("attempt {number} was let in as {name}"),
            }
        }
    }
}

/// Names and tokens of which none is good.
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
        // A good token in another's name.
        ("operator", token.to_owned()),
        ("host", token.to_owned()),
    ]
}
