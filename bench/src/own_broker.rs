//! Our own broker as a process on a folder that outlives it, and a report that compares figures with limits.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use tempfile::TempDir;
use tokio::process::Command;
use toolbus_client::{AgentRef, BrokerClient};

use crate::{figures::Figures, process::Running};

const TOKEN: &str = "bench-token";
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A temporary folder with a token file, on the disk of the build.
pub fn folder() -> anyhow::Result<TempDir> {
    let beside = std::env::current_exe()?.with_file_name("bench");
    fs::create_dir_all(&beside)?;
    let folder = tempfile::tempdir_in(beside).context("make a folder")?;
    fs::write(folder.path().join("token"), TOKEN).context("write the token")?;
    Ok(folder)
}

/// Starts the broker; returns its URL and the time until it was ready.
pub async fn start(folder: &Path) -> anyhow::Result<(Running, String, Duration)> {
    let token = folder.join("token").to_string_lossy().into_owned();
    start_with(folder, &["--shared-token-file", &token]).await
}

/// Like [`start`] with other options. Without a shared token, agents have tokens of their own.
pub async fn start_with(folder: &Path, options: &[&str]) -> anyhow::Result<(Running, String, Duration)> {
    let binary = std::env::current_exe().context("find this program")?.with_file_name("toolbus");
    let mut command = Command::new(binary);
    command.args(["broker", "--listen", "127.0.0.1:0", "--data"]).arg(folder.join("data"));
    command.args(options);
    let begin = Instant::now();
    let mut broker = Running::spawn("broker", command, folder)?;
    let url = broker.line_after("listening on ", READY_LIMIT).await?;
    Ok((broker, url, begin.elapsed()))
}

pub async fn connect(url: &str, name: &str) -> anyhow::Result<BrokerClient> {
    BrokerClient::connect(url, AgentRef::new(name.to_owned()), TOKEN).await.context("connect")
}

/// Current and peak resident memory in MiB.
pub fn memory(broker: &Running) -> anyhow::Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.id()?)).context("read the broker's memory")?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).context("find a field of the process status")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("parse a field of the process status")?;
        Ok(kib / 1024.0)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

#[derive(Default)]
pub struct Report {
    missed: u32,
    figures: Figures,
}

impl Report {
    /// A figure without a limit.
    pub fn rate(&mut self, label: &str, per_second: f64) {
        self.figures.require(label, Some(per_second));
        println!("{label:<40} {per_second:.0}/s");
    }

    pub fn check(&mut self, label: &str, figure: f64, limit: f64, unit: &str) {
        self.figures.require(label, Some(figure));
        self.check_change(label, figure, limit, unit);
    }

    /// Like [`check`](Self::check) for a difference, which may be zero or below.
    pub fn check_change(&mut self, label: &str, figure: f64, limit: f64, unit: &str) {
        let verdict = if figure <= limit { "reached" } else { "MISSED" };
        self.missed += u32::from(figure > limit);
        println!("{label:<40} {figure:.1} {unit} (at most {limit} {unit}: {verdict})");
    }

    /// Fails if a figure is missing, or with `check` if a goal was missed.
    pub fn finish(self, check: bool) -> anyhow::Result<ExitCode> {
        self.figures.ensure_complete()?;
        Ok(if check && self.missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
