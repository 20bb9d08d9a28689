//! The process of a server, with its own environment and process group. It is terminated on every exit path.

mod environment;
pub(crate) mod lookup;
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

/// The guard needs both of its grace periods, plus some time to react.
const GUARD_TIMEOUT: Duration = Duration::from_secs(8);

/// How to start a server.
pub(crate) struct Program<'a> {
    pub server: &'a str,
    pub command: &'a str,
    pub args: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub cwd: Option<&'a Path>,
}

pub(crate) struct ServerProcess {
    child: Child,
    /// The process group of the server, or of its guard.
    group: Option<Pid>,
    lifeline: Option<Lifeline>,
    grace: Duration,
}

pub(crate) struct Pipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

/// A pipe that is never written to. The guard opens its reading end through `/proc`, so that no descriptor is
/// inherited.
struct Lifeline {
    _write: OwnedFd,
    read: OwnedFd,
}

impl ServerProcess {
    pub fn start(program: &Program<'_>, options: &ConnectionOptions) -> Result<(Self, Pipes), ServerError> {
        let failed = |reason: String| ServerError::Start { server: program.server.to_owned(), reason };
        let env = environment::of_server(program.env);
        // Checked here, because a guard could report a missing command only by its exit code.
        let path = lookup::find(program.command, &env, program.cwd).map_err(|error| failed(error.to_string()))?;
        // The guard needs `/proc` for its lifeline and a subreaper for orphans, both specific to Linux.
        let guard = options.guard.as_ref().filter(|_| cfg!(target_os = "linux"));
        let lifeline = guard.map(|_| Lifeline::new()).transpose();
        let lifeline = lifeline.map_err(|error| failed(format!("could not create a pipe: {error}")))?;
        let mut command = match (guard, &lifeline) {
            (Some(guard), Some(lifeline)) => guarded(guard, lifeline, &path, program.args),
            _ => plain(&path, program.args),
        };
        command.env_clear().envs(&env).process_group(0);
        // The guard must outlive the host to terminate the server.
        command.kill_on_drop(guard.is_none());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = program.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn().map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("stdin, stdout or stderr is not piped".into()));
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let process = Self { child, group, lifeline, grace: options.grace };
        Ok((process, Pipes { stdin, stdout, stderr }))
    }

    pub async fn wait(&mut self) -> ExitReason {
        let status = self.child.wait().await.map_or(ExitReason::Unknown, ExitReason::from);
        // Without a guard, nothing else terminates the rest of the group.
        if self.lifeline.is_none() {
            self.signal(Signal::KILL);
        }
        status
    }

    /// Waits for the exit with a timeout. `None` if the process still runs.
    pub async fn wait_timeout(&mut self, timeout: Duration) -> Option<ExitReason> {
        tokio::time::timeout(timeout, self.wait()).await.ok()
    }

    /// Terminates the process and everything that it started.
    pub async fn end(&mut self) -> ExitReason {
        let timeout = match self.lifeline.take() {
            // The guard sees the end of the lifeline and terminates everything.
            Some(lifeline) => {
                drop(lifeline);
                GUARD_TIMEOUT
            }
            None => {
                self.signal(Signal::TERM);
                self.grace
            }
        };
        if let Some(status) = self.wait_timeout(timeout).await {
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

/// A runtime shutdown drops processes without terminating them. A guard then takes over; without one, this is the last
/// opportunity.
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
