//! An MCP client on standard input while there is no broker yet: its messages are kept for later, and a request that
//! waited long enough is answered with an error, so that no client hangs on a silent server.

use crate::failure::Failure;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use toolbus_mcp::{Id, Message, Outcome, Response, RpcError};
use toolbus_protocol::ErrorCode;
use toolbus_worker::StdioError;
use toolbus_worker::{Input, Output};

/// How long a request waits for a broker.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// What is kept for later; past it nothing more is read.
const MOST_BYTES: usize = 16 << 20;

pub struct Meanwhile<'a> {
    input: &'a mut Input,
    output: &'a mut Output,
    url: String,
    /// Whole lines, in order.
    lines: Vec<Kept>,
    /// The beginning of a line.
    partial: Vec<u8>,
    is_at_end: bool,
}

struct Kept {
    line: Vec<u8>,
    /// Of a request: its id, and when its patience ends.
    request: Option<(Id, Instant)>,
}

impl<'a> Meanwhile<'a> {
    pub fn new(input: &'a mut Input, output: &'a mut Output, url: String) -> Self {
        Self { input, output, url, lines: Vec::new(), partial: Vec::new(), is_at_end: false }
    }

    /// Ends when standard input has ended and nothing waits for an answer. It can be given up at any time.
    pub async fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.refuse_late_ones().await?;
            let first = self.lines.iter().filter_map(|kept| kept.request.as_ref()).map(|(_, until)| *until).min();
            if self.is_at_end && first.is_none() {
                return Ok(());
            }
            let late = async {
                match first {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let may_read = !self.is_at_end && self.kept_bytes() < MOST_BYTES;
            tokio::select! {
                read = self.input.read_buf(&mut self.partial), if may_read => {
                    self.is_at_end = read.map_err(StdioError::Read)? == 0;
                    self.take_lines();
                }
                () = late => {}
            }
        }
    }

    /// What the one who serves from now on has to read first.
    pub fn into_bytes(self) -> Vec<u8> {
        let lines = self.lines.into_iter().flat_map(|kept| kept.line);
        lines.chain(self.partial).collect()
    }

    fn kept_bytes(&self) -> usize {
        self.partial.len() + self.lines.iter().map(|kept| kept.line.len()).sum::<usize>()
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let message = std::str::from_utf8(&line).ok().and_then(|text| Message::parse(text.trim()).ok());
            let request = match message {
                Some(Message::Request(request)) => Some((request.id, Instant::now() + REQUEST_PATIENCE)),
                _ => None,
            };
            self.lines.push(Kept { line, request });
        }
    }

    async fn refuse_late_ones(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        while let Some(at) = self.lines.iter().position(|kept| is_late(kept, now)) {
            let Some((id, _)) = self.lines.remove(at).request else { continue };
            let response = Response { id: Some(id), outcome: Outcome::from(self.error()) };
            let line = format!("{}\n", Message::from(response).to_json());
            self.output.write_all(line.as_bytes()).await.map_err(StdioError::Write)?;
            self.output.flush().await.map_err(StdioError::Write)?;
        }
        Ok(())
    }

    fn error(&self) -> RpcError {
        let message = format!("there is no broker at {}; the request was not passed on", self.url);
        RpcError::bus(ErrorCode::HostAway.code(), message, "start it with `toolbus up` or `toolbus broker`")
    }
}

fn is_late(kept: &Kept, now: Instant) -> bool {
    kept.request.as_ref().is_some_and(|(_, until)| *until <= now)
}
