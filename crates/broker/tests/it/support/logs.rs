//! The broker's log of one test. Everything but the storage threads runs on the test's own thread, and so does this.

use super::within;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

pub struct Logs {
    sink: Sink,
    _guard: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    written: Arc<Notify>,
}

impl Logs {
    /// Collects every line from now on, of every level.
    pub fn start() -> Self {
        let sink = Sink::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(sink.clone())
            .finish();
        Self { sink, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.sink.bytes.lock().expect("no panic while writing")).into_owned()
    }

    /// What an operator sees by default and should look at.
    pub fn warnings(&self) -> Vec<String> {
        let alarming = |line: &&str| line.trim_start().starts_with("WARN") || line.trim_start().starts_with("ERROR");
        self.text().lines().filter(alarming).map(str::to_owned).collect()
    }

    pub fn clear(&self) {
        self.sink.bytes.lock().expect("no panic while writing").clear();
    }

    /// Waits for a line with these words.
    pub async fn line_with(&self, words: &str) -> String {
        within(&format!("a log line with {words}"), async {
            loop {
                let written = self.sink.written.notified();
                if let Some(line) = self.text().lines().find(|line| line.contains(words)) {
                    return line.to_owned();
                }
                written.await;
            }
        })
        .await
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.lock().expect("no panic while writing").extend_from_slice(bytes);
        self.written.notify_waiters();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
