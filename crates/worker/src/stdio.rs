//! MCP over the process's own stdin and stdout: a line per message, both eras as they come. One loop moves everything,
//! so that a call costs no hop between tasks.

mod lines;
mod process;

pub use process::{Input, Output, stdin, stdout};

use crate::envelope::Envelope;
use crate::frontend::{Frontend, FrontendCall, News};
use crate::worker::Worker;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lines::{Line, Lines};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, Id, Message, Outcome, Response, RpcError, codes};

#[derive(Debug, Clone)]
pub struct StdioOptions {
    pub max_line_bytes: usize,
    /// After the end of stdin: how long calls may still take.
    pub last_answers_within: Duration,
    /// A client that does not read what it is sent for so long is taken for gone.
    pub read_within: Duration,
    /// Ends the service as if the client had gone, without waiting for what is under way.
    pub stop: CancellationToken,
}

impl Default for StdioOptions {
    fn default() -> Self {
        Self {
            max_line_bytes: 16 << 20,
            last_answers_within: Duration::from_secs(30),
            read_within: Duration::from_secs(60),
            stop: CancellationToken::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("stdin can't be read: {0}")]
    Read(#[source] std::io::Error),
    #[error("stdout can't be written: {0}")]
    Write(#[source] std::io::Error),
}

/// Serves the client at the other end of two streams, until it closes its own or the service is stopped.
pub async fn serve_streams(
    worker: Arc<Worker>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
    options: StdioOptions,
) -> Result<(), StdioError> {
    let frontend = Frontend::new(worker, uuid::Uuid::new_v4().to_string());
    let news = News::open(&frontend);
    let calls = FuturesUnordered::new();
    let mut service = Service { frontend: Arc::clone(&frontend), news, calls, output, options };
    let outcome = service.run(input).await;
    // What is still under way is cancelled before the session is closed.
    drop(service);
    tokio::time::timeout(GOODBYE, frontend.close()).await.ok();
    outcome
}

/// How long the hosts' goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);

type Waiting = std::pin::Pin<Box<dyn Future<Output = (FrontendCall, Option<Message>)> + Send>>;

struct Service<W> {
    frontend: Arc<Frontend>,
    news: News,
    calls: FuturesUnordered<Waiting>,
    output: W,
    options: StdioOptions,
}

impl<W: AsyncWrite + Unpin> Service<W> {
    async fn run(&mut self, input: impl AsyncRead + Unpin) -> Result<(), StdioError> {
        let mut lines = Lines::new(input, self.options.max_line_bytes);
        loop {
            tokio::select! {
                Some((call, message)) = self.calls.next() => self.go_on(call, message).await?,
                message = self.news.next() => self.write(&message).await?,
                line = lines.next() => match line.map_err(StdioError::Read)? {
                    Some(line) => self.take(line).await?,
                    None => break,
                },
                () = self.options.stop.cancelled() => return Ok(()),
            }
        }
        self.finish().await
    }

    /// Stdin is closed: what was asked is still answered, but nothing lasts for ever.
    async fn finish(&mut self) -> Result<(), StdioError> {
        let until = Instant::now() + self.options.last_answers_within;
        // Listening would never end by itself.
        while self.frontend.calls_under_way() > self.frontend.listenings() {
            tokio::select! {
                next = self.calls.next() => match next {
                    Some((call, message)) => self.go_on(call, message).await?,
                    None => break,
                },
                () = tokio::time::sleep_until(until) => break,
                () = self.options.stop.cancelled() => break,
            }
        }
        Ok(())
    }

    async fn go_on(&mut self, call: FrontendCall, message: Option<Message>) -> Result<(), StdioError> {
        let Some(message) = message else { return Ok(()) };
        if !matches!(message, Message::Response(_)) {
            self.calls.push(wait(call));
        }
        self.write(&message).await
    }

    async fn take(&mut self, line: Line) -> Result<(), StdioError> {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong => {
                let message = format!("Invalid request: a line of more than {} bytes", self.options.max_line_bytes);
                return self.refuse(None, RpcError::new(codes::INVALID_REQUEST, message)).await;
            }
            Line::NotUtf8 => {
                return self.refuse(None, RpcError::new(codes::PARSE_ERROR, "Parse error: not UTF-8")).await;
            }
        };
        match Message::parse(&text) {
            Ok(Message::Request(request)) => {
                let era = if request.method == "initialize" {
                    Era::Legacy
                } else {
                    Era::of_params(request.params.as_deref())
                };
                if era == Era::Modern
                    && let Err(error) =
                        Envelope::read(request.params.as_ref()).and_then(|envelope| envelope.check_version())
                {
                    return self.refuse(Some(request.id), error).await;
                }
                let call = self.frontend.request(era, request).await;
                self.calls.push(wait(call));
            }
            Ok(Message::Notification(notification)) => {
                self.frontend.notification(self.frontend.era(), notification).await
            }
            Ok(Message::Response(response)) => self.frontend.response(response).await,
            Err(error) => return self.refuse(error.id().cloned(), error.to_rpc_error()).await,
        }
        Ok(())
    }

    async fn refuse(&mut self, id: Option<Id>, error: RpcError) -> Result<(), StdioError> {
        self.write(&Response { id, outcome: Outcome::from(error) }.into()).await
    }

    async fn write(&mut self, message: &Message) -> Result<(), StdioError> {
        let mut line = message.to_json();
        line.push('\n');
        let write = async {
            self.output.write_all(line.as_bytes()).await?;
            self.output.flush().await
        };
        let not_read = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
        tokio::time::timeout(self.options.read_within, write)
            .await
            .unwrap_or_else(|_| not_read())
            .map_err(StdioError::Write)
    }
}

fn wait(mut call: FrontendCall) -> Waiting {
    Box::pin(async move {
        let message = call.next().await;
        (call, message)
    })
}
