//! The connection to a server over the pipes of its process: one task reads, one writes, one supervises the process.

mod lines;
mod reader;
mod writer;

use crate::config::{ServerConfig, TransportConfig};
use crate::error::ServerError;
use crate::inbound::Inbound;
use crate::options::ConnectionOptions;
use crate::process::{Program, ServerProcess, StderrTail};
use crate::secrets::Resolved;
use reader::ReadEnd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Message, Notification, Response, raw};

/// Messages queued for the server's stdin.
const MAX_WAITING_LINES: usize = 256;
/// A server that reads nothing for this long hangs.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Output of an exited process is still in the pipe. A grandchild may hold the pipe open forever.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) struct StdioLink {
    inbound: Arc<Inbound>,
    lines: mpsc::Sender<String>,
    stop: CancellationToken,
    gone: CancellationToken,
    stderr: StderrTail,
}

impl StdioLink {
    pub fn open(
        config: &ServerConfig,
        resolved: &Resolved,
        options: &ConnectionOptions,
        inbound: Arc<Inbound>,
    ) -> Result<Self, ServerError> {
        let TransportConfig::Stdio { command, args, env, cwd } = &resolved.transport else {
            let reason = "the server is configured for HTTP".to_owned();
            return Err(ServerError::Start { server: config.name.clone(), reason });
        };
        let program = Program { server: &config.name, command, args, env, cwd: cwd.as_deref() };
        let (process, pipes) = ServerProcess::start(&program, options)?;
        let (lines, queued) = mpsc::channel(MAX_WAITING_LINES);
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        let stderr = StderrTail::new(inbound.redactor.clone());
        tokio::spawn(stderr.clone().read(pipes.stderr));
        tokio::spawn(writer::write(pipes.stdin, queued, stop.clone()));
        // The reader must not keep the writer alive, so it replies through a weak sender.
        let replies = lines.downgrade();
        let reader = tokio::spawn(reader::read(pipes.stdout, inbound.clone(), replies, options.max_message_bytes));
        let supervisor =
            Supervisor { inbound: inbound.clone(), stop: stop.clone(), stderr: stderr.clone(), grace: options.grace };
        let exited = gone.clone();
        tokio::spawn(async move {
            supervisor.run(process, reader).await;
            exited.cancel();
        });
        Ok(Self { inbound, lines, stop, gone, stderr })
    }

    pub async fn send(&self, message: Message) -> Result<(), ServerError> {
        let line = message.to_json();
        let line = match self.lines.try_send(line) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Full(line)) => line,
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(self.close_reason().await),
        };
        match tokio::time::timeout(WRITE_TIMEOUT, self.lines.send(line)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.close_reason().await),
            Err(_) => Err(ServerError::NotReading { server: self.inbound.server.clone(), after: WRITE_TIMEOUT }),
        }
    }

    /// The pipe breaks shortly before the reason is known.
    async fn close_reason(&self) -> ServerError {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT * 2, self.gone.cancelled()).await;
        let unknown = || ServerError::Closed { server: self.inbound.server.clone() };
        self.inbound.calls.closed().unwrap_or_else(unknown)
    }

    /// For callers that can't await.
    pub fn cancel(&self, number: u64, reason: Option<&str>) {
        let line = Message::from(cancelled(number, reason)).to_json();
        let Err(mpsc::error::TrySendError::Full(line)) = self.lines.try_send(line) else { return };
        let lines = self.lines.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { tokio::time::timeout(WRITE_TIMEOUT, lines.send(line)).await });
        }
    }

    pub fn stderr_tail(&self) -> Vec<String> {
        self.stderr.lines()
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }

    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

pub(crate) fn cancelled(number: u64, reason: Option<&str>) -> Notification {
    let mut params = serde_json::Map::new();
    params.insert("requestId".into(), number.into());
    if let Some(reason) = reason {
        params.insert("reason".into(), reason.into());
    }
    Notification { method: "notifications/cancelled".into(), params: Some(raw(&params)) }
}

/// Waits for the process to exit, or terminates it.
struct Supervisor {
    inbound: Arc<Inbound>,
    stop: CancellationToken,
    stderr: StderrTail,
    grace: Duration,
}

impl Supervisor {
    async fn run(self, mut process: ServerProcess, mut reader: JoinHandle<ReadEnd>) {
        let error = tokio::select! {
            status = process.wait() => {
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, &mut reader).await;
                self.died(status)
            }
            end = &mut reader => self.output_ended(end.unwrap_or(ReadEnd::EndOfFile), &mut process).await,
            () = self.stop.cancelled() => {
                let closed = ServerError::Closed { server: self.inbound.server.clone() };
                self.inbound.close(closed.clone());
                if process.wait_timeout(self.grace).await.is_none() {
                    process.end().await;
                }
                closed
            }
        };
        reader.abort();
        self.stop.cancel();
        self.inbound.close(error);
    }

    /// A server without stdout is unusable, whether it still runs or not.
    async fn output_ended(&self, end: ReadEnd, process: &mut ServerProcess) -> ServerError {
        match end {
            ReadEnd::EndOfFile => match process.wait_timeout(DRAIN_TIMEOUT).await {
                Some(status) => self.died(status),
                None => {
                    process.end().await;
                    self.died(crate::error::ExitReason::Unknown)
                }
            },
            ReadEnd::Garbage(error) => {
                // Callers get the error without waiting for the process to exit.
                self.inbound.close(error.clone());
                process.end().await;
                error
            }
        }
    }

    fn died(&self, status: crate::error::ExitReason) -> ServerError {
        ServerError::Died { server: self.inbound.server.clone(), status, stderr: self.stderr.lines() }
    }
}

/// A reply of the reader, which never waits for the writer: replies to a server that doesn't read them are dropped.
pub(super) fn reply(lines: &mpsc::WeakSender<String>, response: Response) {
    if let Some(lines) = lines.upgrade() {
        let _ = lines.try_send(Message::from(response).to_json());
    }
}
