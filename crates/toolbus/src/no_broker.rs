//! Serves an MCP client on standard input until a broker is reachable: buffers its messages, and answers each request
//! with an error after a timeout, so that the client does not hang.

use crate::failure::Failure;
use std::cell::RefCell;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{Id, Message, Outcome, Response, RpcError};
use toolbus_protocol::ErrorCode;
use toolbus_worker::StdioError;
use toolbus_worker::{Input, Output};

/// How long a request waits for a broker.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the buffer. Reading stops when it is full (backpressure).
const MAX_BUFFERED_BYTES: usize = 16 << 20;

pub struct RequestBuffer<'a> {
    input: &'a mut Input,
    output: &'a mut Output,
    url: String,
    /// Why the last attempt to connect failed.
    obstacle: &'a RefCell<Option<BrokerError>>,
    /// Complete lines, in order.
    lines: Vec<BufferedLine>,
    /// An incomplete line.
    partial: Vec<u8>,
    is_at_end: bool,
}

struct BufferedLine {
    line: Vec<u8>,
    /// The id and the timeout of a request; `None` for other messages.
    request: Option<(Id, Instant)>,
}

impl<'a> RequestBuffer<'a> {
    pub fn new(
        input: &'a mut Input,
        output: &'a mut Output,
        url: String,
        obstacle: &'a RefCell<Option<BrokerError>>,
    ) -> Self {
        Self { input, output, url, obstacle, lines: Vec::new(), partial: Vec::new(), is_at_end: false }
    }

    /// Ends when standard input has ended and no request waits for an answer. Dropping the future loses no input.
    pub async fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.reject_expired().await?;
            let first =
                self.lines.iter().filter_map(|buffered| buffered.request.as_ref()).map(|(_, until)| *until).min();
            if self.is_at_end && first.is_none() {
                return Ok(());
            }
            let timeout = async {
                match first {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let may_read = !self.is_at_end && self.buffered_bytes() < MAX_BUFFERED_BYTES;
            tokio::select! {
                read = self.input.read_buf(&mut self.partial), if may_read => {
                    self.is_at_end = read.map_err(StdioError::Read)? == 0;
                    self.split_lines();
                }
                () = timeout => {}
            }
        }
    }

    /// The buffered input, which the worker must read before the rest of standard input.
    pub fn into_bytes(self) -> Vec<u8> {
        let lines = self.lines.into_iter().flat_map(|buffered| buffered.line);
        lines.chain(self.partial).collect()
    }

    fn buffered_bytes(&self) -> usize {
        self.partial.len() + self.lines.iter().map(|buffered| buffered.line.len()).sum::<usize>()
    }

    fn split_lines(&mut self) {
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let message = std::str::from_utf8(&line).ok().and_then(|text| Message::parse(text.trim()).ok());
            let request = match message {
                Some(Message::Request(request)) => Some((request.id, Instant::now() + REQUEST_TIMEOUT)),
                _ => None,
            };
            self.lines.push(BufferedLine { line, request });
        }
    }

    async fn reject_expired(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        while let Some(at) = self.lines.iter().position(|buffered| is_expired(buffered, now)) {
            let Some((id, _)) = self.lines.remove(at).request else { continue };
            let response = Response { id: Some(id), outcome: Outcome::from(self.error()) };
            let line = format!("{}\n", Message::from(response).to_json());
            self.output.write_all(line.as_bytes()).await.map_err(StdioError::Write)?;
            self.output.flush().await.map_err(StdioError::Write)?;
        }
        Ok(())
    }

    fn error(&self) -> RpcError {
        if let Some(BrokerError::Busy { code, reason }) = &*self.obstacle.borrow() {
            let message =
                format!("the broker at {} accepts no connection: {reason}; the request was not forwarded", self.url);
            return RpcError::bus(code.code(), message, code.hint());
        }
        let message = format!("no broker at {}; the request was not forwarded", self.url);
        RpcError::bus(ErrorCode::HostAway.code(), message, "start it with `toolbus up` or `toolbus broker`")
    }
}

fn is_expired(buffered: &BufferedLine, now: Instant) -> bool {
    buffered.request.as_ref().is_some_and(|(_, until)| *until <= now)
}
