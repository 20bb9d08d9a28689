//! A server's process: started with an environment of its own in a group of its own, and ended on every way out.

mod environment;
mod lookup;
mod stderr;

pub(crate) use stderr::StderrTail;

use crate::error::{ExitReason, ServerError};
use crate::options::{ConnectionOptions, GuardCommand};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// A guard needs its own two graces before it gives up, and a moment to notice.
const GUARD_MARGIN: Duration = Duration::from_secs(8);

/// How a server is started.
pub(crate) struct Program<'a> {
    pub server: &'a str,
    pub command: &'a str,
    pub args: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub cwd: Option<&'a Path>,
}

pub(crate) struct ServerProcess {
    child: Child,
    /// The group of the server, or of its guard.
    group: Option<Pid>,
    lifeline: Option<Lifeline>,
    grace: Duration,
}

pub(crate) struct Pipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

/// A pipe into which nothing is ever written. The guard opens its reading end through `/proc`, so neither end is
/// inherited by anything.
struct Lifeline {
    _write: OwnedFd,
    read: OwnedFd,
}

impl ServerProcess {
    pub fn start(program: &Program<'_>, options: &ConnectionOptions) -> Result<(Self, Pipes), ServerError> {
        let failed = |reason: String| ServerError::Start { server: program.server.to_owned(), reason };
        let env = environment::of_server(program.env);
        // Looked up here, because a guard could only tell by an exit code that there is no such command.
        let path = lookup::find(program.command, &env, program.cwd).map_err(|error| failed(error.to_string()))?;
        // A guard finds its lifeline through /proc and orphans as their subreaper; both are Linux.
        let guard = options.guard.as_ref().filter(|_| cfg!(target_os = "linux"));
        let lifeline = guard.map(|_| Lifeline::new()).transpose();
        let lifeline = lifeline.map_err(|error| failed(format!("no pipe: {error}")))?;
        let mut command = match (guard, &lifeline) {
            (Some(guard), Some(lifeline)) => guarded(guard, lifeline, &path, program.args),
            _ => plain(&path, program.args),
        };
        command.env_clear().envs(&env).process_group(0);
        // A guard must live on to do its work.
        command.kill_on_drop(guard.is_none());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = program.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn().map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(failed("no pipes".into())) };
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let process = Self { child, group, lifeline, grace: options.grace };
        Ok((process, Pipes { stdin, stdout, stderr }))
    }

    pub async fn wait(&mut self) -> ExitReason {
        let status = self.child.wait().await.map_or(ExitReason::Unknown, ExitReason::from);
        // Without a guard the rest of the group has nobody else to end it.
        if self.lifeline.is_none() {
            self.signal(Signal::KILL);
        }
        status
    }

    /// Waits for the end, but not for long. None means that it still runs.
    pub async fn wait_for(&mut self, patience: Duration) -> Option<ExitReason> {
        tokio::time::timeout(patience, self.wait()).await.ok()
    }

    /// Ends it and everything that it started.
    pub async fn end(&mut self) -> ExitReason {
        let patience = match self.lifeline.take() {
            // The guard sees the end of the lifeline and does all the rest.
            Some(lifeline) => {
                drop(lifeline);
                GUARD_MARGIN
            }
            None => {
                self.signal(Signal::TERM);
                self.grace
            }
        };
        if let Some(status) = self.wait_for(patience).await {
            return status;
        }
        self.signal(Signal::KILL);
        let _ = self.child.start_kill();
        self.wait().await
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

/// A runtime that is shut down drops processes that nobody ended. Their guard takes it from here; without one, this is
/// the last chance.
impl Drop for ServerProcess {
    fn drop(&mut self) {
        if self.lifeline.is_none() && self.child.id().is_some() {
            self.signal(Signal::KILL);
        }
    }
}

impl Lifeline {
    fn new() -> Result<Self, rustix::io::Errno> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Self { _write: write, read })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.read.as_raw_fd()).into()
    }
}

fn plain(path: &Path, args: &[String]) -> Command {
    let mut command = Command::new(path);
    command.args(args);
    command
}

fn guarded(guard: &GuardCommand, lifeline: &Lifeline, path: &Path, args: &[String]) -> Command {
    let mut command = Command::new(&guard.program);
    command.args(&guard.args).arg("--lifeline").arg(lifeline.path());
    command.arg("--").arg(OsString::from(path)).args(args);
    command
}
