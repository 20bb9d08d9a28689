//! Programs that run beside the task: their output goes to a file, no wait is without an end, and none outlives its owner.

use crate::run::StepError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
/// How long a program has to leave after SIGTERM.
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

    /// Asks `ready` again and again until it says yes; a program that ends before that has failed.
    pub fn wait_until(&mut self, patience: Duration, ready: impl Fn() -> bool) -> Result<(), StepError> {
        let end = Instant::now() + patience;
        while !ready() {
            if self.status().is_some() || Instant::now() > end {
                return Err(self.failure("was never ready"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    pub fn wait_for_end(&mut self, patience: Duration) -> Result<ExitStatus, StepError> {
        let end = Instant::now() + patience;
        loop {
            if let Some(status) = self.status() {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(self.failure("took too long"));
            }
            std::thread::sleep(POLL);
        }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn failure(&self, problem: &str) -> StepError {
        StepError::Failed { step: format!("{}: it {problem}; its output is in {}; it", self.name, self.log.display()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status().is_some() {
            return;
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        if self.wait_for_end(GRACE).is_err() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
