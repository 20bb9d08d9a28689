//! Child processes: their output goes to a file, every wait has a timeout, and dropping the handle ends the process.

use crate::run::StepError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
/// How long a process may take to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(8);

pub struct Running {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Running {
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self, StepError> {
        let file = |source| StepError::File { path: log.to_owned(), source };
        let output = File::create(log).map_err(file)?;
        let errors = output.try_clone().map_err(file)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.map_err(|source| StepError::NotStarted { step: name.to_owned(), source })?;
        Ok(Self { name: name.to_owned(), log: log.to_owned(), child })
    }

    /// Polls `ready` until it returns true; fails if the process exits before that.
    pub fn wait_until(&mut self, timeout: Duration, ready: impl Fn() -> bool) -> Result<(), StepError> {
        let end = Instant::now() + timeout;
        while !ready() {
            if self.status().is_some() || Instant::now() > end {
                return Err(self.failure("was not ready in time"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    pub fn wait_for_exit(&mut self, timeout: Duration) -> Result<ExitStatus, StepError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(status) = self.status() {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(self.failure("timed out"));
            }
            std::thread::sleep(POLL);
        }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn failure(&self, problem: &str) -> StepError {
        StepError::Failed { step: format!("{} ({problem}; its output is in {})", self.name, self.log.display()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status().is_some() {
            return;
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        if self.wait_for_exit(GRACE).is_err() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
