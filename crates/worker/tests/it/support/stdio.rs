//! An MCP client on the worker's stdin and stdout.

use super::bus::FakeBus;
use super::{initialize, soon};
use serde_json::Value;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;
use toolbus_worker::{Bus, StdioError, StdioOptions, Worker, WorkerOptions, serve_streams};

pub struct StdioClient {
    input: Option<DuplexStream>,
    lines: Lines<BufReader<DuplexStream>>,
    pub served: JoinHandle<Result<(), StdioError>>,
}

impl StdioClient {
    pub fn start(bus: &Arc<FakeBus>) -> Self {
        Self::with(bus, WorkerOptions::default(), StdioOptions::default())
    }

    pub fn with(bus: &Arc<FakeBus>, worker: WorkerOptions, options: StdioOptions) -> Self {
        Self::on(Arc::clone(bus) as Arc<_>, worker, options)
    }

    pub fn on(bus: Arc<dyn Bus>, worker: WorkerOptions, options: StdioOptions) -> Self {
        let worker = Worker::new(bus, worker);
        let (input, their_input) = tokio::io::duplex(1 << 20);
        let (their_output, output) = tokio::io::duplex(1 << 20);
        let served = tokio::spawn(serve_streams(worker, their_input, their_output, options));
        Self { input: Some(input), lines: BufReader::new(output).lines(), served }
    }

    /// Sends `initialize` and returns the response.
    pub async fn initialized(bus: &Arc<FakeBus>) -> (Self, Value) {
        let mut client = Self::start(bus);
        client.send(&initialize(0)).await;
        let response = client.next().await;
        (client, response)
    }

    pub async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        let line = format!("{text}\n");
        self.input.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
    }

    pub async fn next(&mut self) -> Value {
        serde_json::from_str(&self.next_text().await).unwrap()
    }

    /// The next response, without the notifications before it.
    pub async fn answer(&mut self) -> Value {
        loop {
            let message = self.next().await;
            if message["method"].is_null() {
                return message;
            }
        }
    }

    pub async fn next_text(&mut self) -> String {
        soon("a line", self.lines.next_line()).await.unwrap().expect("the worker ended")
    }

    pub fn close(&mut self) {
        self.input = None;
    }

    /// The remaining messages until the worker ends.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(line) = soon("the end", self.lines.next_line()).await.unwrap() {
            rest.push(serde_json::from_str(&line).unwrap());
        }
        rest
    }
}
