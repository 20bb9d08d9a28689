//! Captures the broker's log during one test. The subscriber is thread-local: all but the storage threads run on the
//! test's thread.

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
    /// Captures log lines of all levels from now on.
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
        String::from_utf8_lossy(&self.sink.bytes.lock().expect("no panic while holding the lock")).into_owned()
    }

    /// Lines of level WARN or ERROR.
    pub fn warnings(&self) -> Vec<String> {
        let is_warning = |line: &&str| line.trim_start().starts_with("WARN") || line.trim_start().starts_with("ERROR");
        self.text().lines().filter(is_warning).map(str::to_owned).collect()
    }

    pub fn clear(&self) {
        self.sink.bytes.lock().expect("no panic while holding the lock").clear();
    }

    /// Waits for a line that contains `text`.
    pub async fn line_with(&self, text: &str) -> String {
        within(&format!("a log line with {text}"), async {
            loop {
                let written = self.sink.written.notified();
                if let Some(line) = self.text().lines().find(|line| line.contains(text)) {
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
        self.bytes.lock().expect("no panic while holding the lock").extend_from_slice(bytes);
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
