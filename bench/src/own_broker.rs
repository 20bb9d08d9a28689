//! Our own broker as a process with a folder that outlives it, and figures held against limits.

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

use crate::process::Running;

const TOKEN: &str = "bench-token";
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A folder on the disk that holds the build, thrown away afterwards.
pub fn folder() -> anyhow::Result<TempDir> {
    let beside = std::env::current_exe()?.with_file_name("bench");
    fs::create_dir_all(&beside)?;
    let folder = tempfile::tempdir_in(beside).context("make a folder")?;
    fs::write(folder.path().join("token"), TOKEN).context("write the token")?;
    Ok(folder)
}

/// Starts the broker and says how long it took to be ready.
pub async fn start(folder: &Path) -> anyhow::Result<(Running, String, Duration)> {
    let token = folder.join("token").to_string_lossy().into_owned();
    start_with(folder, &["--shared-token-file", &token]).await
}

/// The same with other options; without a shared token, agents have tokens of their own.
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

/// Resident memory now and at its highest, in MiB.
pub fn memory(broker: &Running) -> anyhow::Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.id()?)).context("read the broker's memory")?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a field of the status")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("a number of the status")?;
        Ok(kib / 1024.0)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

#[derive(Default)]
pub struct Report {
    short: u32,
}

impl Report {
    pub fn line(&self, what: &str, figure: String) {
        println!("{what:<40} {figure}");
    }

    pub fn check(&mut self, what: &str, figure: f64, limit: f64, unit: &str) {
        let verdict = if figure <= limit { "reached" } else { "SHORT" };
        self.short += u32::from(figure > limit);
        self.line(what, format!("{figure:.1} {unit} (at most {limit} {unit}: {verdict})"));
    }

    pub fn finish(self, check: bool) -> ExitCode {
        if check && self.short > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
