//! Child processes of a measurement: their stderr goes to a log file, a line on stdout signals that they are ready, and
//! dropping the handle kills them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Number of log lines quoted when a process fails.
const QUOTED_LINES: usize = 8;

pub struct Running {
    name: &'static str,
    child: Child,
    lines: Option<Lines<BufReader<ChildStdout>>>,
    log: PathBuf,
    /// Held open: our own children exit when it closes, even if this process is killed.
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
        self.child.id().with_context(|| format!("the {} has exited:\n{}", self.name, self.log_tail()))
    }

    /// Waits for a line with this prefix and returns the rest of it. Later output is read and discarded, so that the
    /// process never blocks on a full pipe.
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
            Err(_) => bail!("the {} did not print {prefix:?} within {limit:?}:\n{}", self.name, self.log_tail()),
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        found.ok_or_else(|| anyhow!("the {} exited:\n{}", self.name, self.log_tail()))
    }

    /// The last lines that the process wrote to stderr.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(mut self, limit: Duration) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.id()?).context("a process id")?).context("a process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("stop the {}", self.name))?;
        let exit = tokio::time::timeout(limit, self.child.wait()).await;
        exit.with_context(|| format!("the {} did not stop within {limit:?}", self.name))??;
        Ok(())
    }

    /// Kills the process and waits for its exit.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("kill the {}", self.name))
    }
}

/// Exits this process when its parent exits: the parent holds our stdin open.
pub fn exit_with_parent() {
    std::thread::spawn(|| {
        // The parent writes nothing, so this returns at EOF.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
