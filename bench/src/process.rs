//! Child processes of a measurement: started with their stderr in a log file, watched
//! for the line that says they are ready, and ended when their handle goes away.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Lines of a log that are quoted when a process fails.
const QUOTED_LINES: usize = 8;

pub struct Running {
    name: &'static str,
    child: Child,
    lines: Option<Lines<BufReader<ChildStdout>>>,
    log: PathBuf,
    /// Held open: our own children end when it closes, even if we are killed.
    _stdin: Option<ChildStdin>,
}

impl Running {
    pub fn spawn(name: &'static str, mut command: Command, folder: &Path) -> anyhow::Result<Running> {
        let log = folder.join(format!("{name}.log"));
        let stderr = fs::File::create(&log).context("create a log file")?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the {name}: {command:?}"))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        Ok(Running { name, lines: Some(BufReader::new(stdout).lines()), log, _stdin: child.stdin.take(), child })
    }

    pub fn id(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("the {} has ended:\n{}", self.name, self.log_tail()))
    }

    /// Waits for a line with the given beginning and returns the rest of it. What the
    /// process says afterwards is read and dropped, so that it never blocks on us.
    pub async fn line_after(&mut self, prefix: &str, limit: Duration) -> anyhow::Result<String> {
        let mut lines = self.lines.take().expect("a process is awaited only once");
        let search = async {
            while let Some(line) = lines.next_line().await? {
                if let Some(rest) = line.strip_prefix(prefix) {
                    return Ok(Some(rest.trim().to_owned()));
                }
            }
            std::io::Result::Ok(None)
        };
        let found = match tokio::time::timeout(limit, search).await {
            Ok(found) => found.with_context(|| format!("read from the {}", self.name))?,
            Err(_) => bail!("the {} did not say {prefix:?} within {limit:?}:\n{}", self.name, self.log_tail()),
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        found.ok_or_else(|| anyhow!("the {} ended:\n{}", self.name, self.log_tail()))
    }

    /// The last lines the process wrote to stderr.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    /// Ends the process and waits until it is gone.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("end the {}", self.name))
    }
}

/// Ends this process when its parent does: the parent holds our stdin open.
pub fn exit_with_parent() {
    std::thread::spawn(|| {
        // Nothing is ever written to it, so this returns at the end of the file.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
