//! MCP over the process's own stdin and stdout: one message per line, either era per message. One loop does all I/O, so
//! that a call costs no switch between tasks.

pub mod batches;
mod lines;
mod process;

pub use process::{Input, Output, stdin, stdout};

use crate::envelope::Envelope;
use crate::error;
use crate::frontend::{Frontend, FrontendCall, News};
use crate::worker::Worker;
use batches::{BatchNo, Batches};
use bytestring::ByteString;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lines::{Line, Lines};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_base::BoxFuture;
use toolbus_mcp::{
    Era, Id, Message, MessageError, Outcome, Request, Response, RpcError, ScannedId, codes, parse_batch,
};

/// The limits of the stdio transport.
#[derive(Debug, Clone)]
pub struct StdioOptions {
    /// The maximum length of a message.
    pub max_line_bytes: usize,
    /// Shutdown timeout: how long running calls may take after the end of stdin.
    pub last_answers_within: Duration,
    /// Write timeout: a client that does not read its output for this long counts as disconnected. After `stop` it is two
    /// seconds at most.
    pub read_within: Duration,
    /// Stops the service. Running calls go on at their hosts: the client cancelled nothing, and may repeat them through
    /// another worker. After the end of stdin they are cancelled instead, once `last_answers_within` has passed.
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

/// Why the stdio transport failed.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// Reading the client's messages failed.
    #[error("failed to read stdin: {0}")]
    Read(#[source] std::io::Error),
    /// Writing to the client failed or timed out.
    #[error("failed to write stdout: {0}")]
    Write(#[source] std::io::Error),
}

/// Serves one client over two streams, until the client closes `input` or the service is stopped.
pub fn serve_streams(
    worker: Arc<Worker>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    options: StdioOptions,
) -> BoxFuture<'static, Result<(), StdioError>> {
    serve(worker, Box::new(input), Box::new(output), options)
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

fn serve(
    worker: Arc<Worker>,
    input: Reader,
    output: Writer,
    options: StdioOptions,
) -> BoxFuture<'static, Result<(), StdioError>> {
    Box::pin(run(worker, input, output, options))
}

async fn run(worker: Arc<Worker>, input: Reader, output: Writer, options: StdioOptions) -> Result<(), StdioError> {
    let frontend = Frontend::new(worker, uuid::Uuid::new_v4().to_string());
    let news = News::open(&frontend);
    let calls = FuturesUnordered::new();
    let batches = Batches::default();
    let mut service = Service { frontend: Arc::clone(&frontend), news, calls, batches, output, options };
    let outcome = service.run(input).await;
    let leaves_calls = service.options.stop.is_cancelled() && service.has_running_calls();
    if leaves_calls {
        // A reply that is acknowledged and not passed on would count as collected, and its call would run again.
        frontend.worker.bus.abort().await;
        service.forward_received().await;
        frontend.worker.detach();
    }
    // Dropping the service cancels running calls unless they are detached. It has to happen before the session is closed.
    drop(service);
    // Closing the session would end the server process that runs the detached calls.
    if !leaves_calls {
        tokio::time::timeout(CLOSE_TIMEOUT, frontend.close()).await.ok();
    }
    outcome
}

/// How long a stopped service may take to close its session at the hosts, and to write to a client that does not read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

type PendingCall = std::pin::Pin<Box<dyn Future<Output = (RunningCall, Option<Message>)> + Send>>;

/// A request of the client, and the batch that its response belongs to.
struct RunningCall {
    call: FrontendCall,
    batch: Option<BatchNo>,
}

struct Service {
    frontend: Arc<Frontend>,
    news: News,
    calls: FuturesUnordered<PendingCall>,
    batches: Batches,
    output: Writer,
    options: StdioOptions,
}

impl Service {
    async fn run(&mut self, input: impl AsyncRead + Unpin) -> Result<(), StdioError> {
        let mut lines = Lines::new(input, self.options.max_line_bytes);
        loop {
            tokio::select! {
                Some((call, message)) = self.calls.next() => self.forward(call, message).await?,
                message = self.news.next() => self.write(&message).await?,
                line = lines.next() => match line.map_err(StdioError::Read)? {
                    Some(line) => self.handle_line(line).await?,
                    None => break,
                },
                () = self.options.stop.cancelled() => return Ok(()),
            }
        }
        self.drain().await
    }

    /// After the end of stdin: answers running calls until the shutdown timeout.
    async fn drain(&mut self) -> Result<(), StdioError> {
        let until = Instant::now() + self.options.last_answers_within;
        while self.has_running_calls() {
            tokio::select! {
                next = self.calls.next() => match next {
                    Some((call, message)) => self.forward(call, message).await?,
                    None => break,
                },
                () = tokio::time::sleep_until(until) => break,
                () = self.options.stop.cancelled() => break,
            }
        }
        Ok(())
    }

    /// A `subscriptions/listen` ends only with the client, so it doesn't count.
    fn has_running_calls(&self) -> bool {
        self.frontend.calls_under_way() > self.frontend.listenings()
    }

    /// Passes on the replies that were received before the connection was cut.
    async fn forward_received(&mut self) {
        while let Some(Some((call, message))) = self.calls.next().now_or_never() {
            if self.forward(call, message).await.is_err() {
                return;
            }
        }
    }

    async fn forward(&mut self, running: RunningCall, message: Option<Message>) -> Result<(), StdioError> {
        match (running.batch, message) {
            (Some(batch), message @ (None | Some(Message::Response(_)))) => self.end_in_batch(batch, message).await,
            (None, None) => Ok(()),
            (_, Some(message)) => {
                if !matches!(message, Message::Response(_)) {
                    self.calls.push(next_message(running));
                }
                self.write(&message).await
            }
        }
    }

    async fn end_in_batch(&mut self, batch: BatchNo, response: Option<Message>) -> Result<(), StdioError> {
        match self.batches.ended(batch, response) {
            Some(responses) => self.write_line(responses).await,
            None => Ok(()),
        }
    }

    async fn handle_line(&mut self, line: Line) -> Result<(), StdioError> {
        let text = match line {
            Line::Text(text) => ByteString::from(text),
            Line::TooLong(found) => return self.handle_overlong(&found).await,
            Line::NotUtf8 => {
                return self.reject(None, RpcError::new(codes::PARSE_ERROR, "Parse error: not UTF-8")).await;
            }
        };
        match Message::parse(text.clone()) {
            Err(MessageError::Batch) if self.frontend.accepts_batches() => self.handle_batch(&text).await,
            message => match self.handle(message, None).await {
                Some(response) => self.write(&response).await,
                None => Ok(()),
            },
        }
    }

    async fn handle_batch(&mut self, text: &ByteString) -> Result<(), StdioError> {
        let messages = match parse_batch(text) {
            Ok(messages) => messages,
            Err(error) => return self.reject(None, error.to_rpc_error()).await,
        };
        let batch = self.batches.open();
        for message in messages {
            if let Some(response) = self.handle(message, Some(batch)).await {
                self.batches.add_response(batch, response);
            }
        }
        self.end_in_batch(batch, None).await
    }

    /// Handles a message. Returns the response to one that is rejected.
    async fn handle(&mut self, message: Result<Message, MessageError>, batch: Option<BatchNo>) -> Option<Message> {
        match message {
            Ok(Message::Request(request)) => {
                let checked = if batch.is_some() { check_batched(&request) } else { Ok(()) };
                let era = match checked.and_then(|()| self.era_of(&request)) {
                    Ok(era) => era,
                    Err(error) => return Some(Response { id: Some(request.id), outcome: error.into() }.into()),
                };
                let call = self.frontend.request(era, request).await;
                batch.iter().for_each(|batch| self.batches.add_running(*batch));
                self.calls.push(next_message(RunningCall { call, batch }));
            }
            Ok(Message::Notification(notification)) => {
                self.frontend.notification(self.frontend.era(), notification).await
            }
            Ok(Message::Response(response)) => self.frontend.response(response).await,
            Err(error) => {
                return Some(Response { id: error.id().cloned(), outcome: error.to_rpc_error().into() }.into());
            }
        }
        None
    }

    /// The era of a request. A modern one has to say which version it uses.
    fn era_of(&self, request: &Request) -> Result<Era, RpcError> {
        if request.method == "initialize" || Era::of_params(request.params.as_ref()) == Era::Legacy {
            return Ok(Era::Legacy);
        }
        let envelope = Envelope::read(request.params.as_ref()).and_then(Envelope::with_known_version)?;
        self.frontend.describe_client(&envelope);
        Ok(Era::Modern)
    }

    /// Answers a message over the limit under its own id, so that its sender does not wait forever.
    async fn handle_overlong(&mut self, found: &ScannedId) -> Result<(), StdioError> {
        let error = error::message_too_large(self.options.max_line_bytes);
        match (found.id.as_ref().and_then(Id::from_raw), found.has_method) {
            // The client's answer to a server's request: the server gets the error instead.
            (id @ Some(_), false) => self.frontend.response(Response { id, outcome: error.into() }).await,
            // JSON-RPC allows no answer to a notification.
            (None, true) => tracing::warn!(bytes = found.bytes, "dropped a notification over the size limit"),
            (id, _) => return self.reject(id, error).await,
        }
        Ok(())
    }

    async fn reject(&mut self, id: Option<Id>, error: RpcError) -> Result<(), StdioError> {
        self.write(&Response { id, outcome: Outcome::from(error) }.into()).await
    }

    async fn write(&mut self, message: &Message) -> Result<(), StdioError> {
        self.write_line(message.to_json()).await
    }

    async fn write_line(&mut self, mut line: String) -> Result<(), StdioError> {
        line.push('\n');
        let write = async {
            self.output.write_all(line.as_bytes()).await?;
            self.output.flush().await
        };
        let StdioOptions { stop, read_within, .. } = &self.options;
        let stopped = async {
            stop.cancelled().await;
            tokio::time::sleep(CLOSE_TIMEOUT).await;
        };
        let written = tokio::select! {
            biased;
            written = tokio::time::timeout(*read_within, write) => written.ok(),
            () = stopped => None,
        };
        let timed_out = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
        written.unwrap_or_else(timed_out).map_err(StdioError::Write)
    }
}

fn next_message(mut running: RunningCall) -> PendingCall {
    Box::pin(async move {
        let message = running.call.next().await;
        (running, message)
    })
}

/// The protocol forbids `initialize` in a batch.
pub fn check_batched(request: &Request) -> Result<(), RpcError> {
    if request.method == "initialize" {
        return Err(RpcError::new(codes::INVALID_REQUEST, "Invalid request: initialize can't be part of a batch"));
    }
    Ok(())
}
