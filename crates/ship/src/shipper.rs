//! The thread that ships the lines of one log.

use crate::error::ShipError;
use crate::state::{Outage, ShipState};
use crate::target::{Sink, Target};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use toolbus_audit::read_batch;
use toolbus_base::{Backoff, now_ms};

/// Lines are sent in batches of about this size.
const MAX_BATCH_BYTES: usize = 256 << 10;

/// Intervals of a shipper.
#[derive(Debug, Clone)]
pub struct ShipOptions {
    /// How often the log is checked for new lines.
    pub poll: Duration,
    /// Delays between attempts while the target is away.
    pub backoff: Backoff,
}

impl Default for ShipOptions {
    fn default() -> Self {
        Self { poll: Duration::from_secs(1), backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)) }
    }
}

/// Ships the lines of one log until it is dropped. Lines that were not shipped then are shipped after the next start.
#[derive(Debug)]
pub struct Shipper {
    /// Dropping it ends the thread, which is not awaited: a hanging mount must not delay a stop.
    _stop: SyncSender<()>,
}

impl Shipper {
    /// Starts the thread. `source` names the log in messages to the target.
    pub fn start(folder: &Path, source: &str, target: &Target, options: ShipOptions) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let shipping = Shipping {
            folder: folder.to_owned(),
            state: ShipState::of(folder, target),
            sink: target.sink(source),
            options,
        };
        std::thread::Builder::new().name("audit-ship".to_owned()).spawn(move || shipping.run(&stopped))?;
        Ok(Self { _stop: stop })
    }
}

struct Shipping {
    folder: PathBuf,
    state: ShipState,
    sink: Box<dyn Sink>,
    options: ShipOptions,
}

impl Shipping {
    fn run(mut self, stopped: &Receiver<()>) {
        loop {
            let delay = self.step();
            if stopped.recv_timeout(delay) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Tries to ship the next lines, and returns the delay before the next step.
    fn step(&mut self) -> Duration {
        match self.ship_batch() {
            Ok(true) => {
                self.options.backoff.reset();
                Duration::ZERO
            }
            Ok(false) => self.options.poll,
            Err(error) => {
                self.report_outage(&error);
                self.options.backoff.next_delay()
            }
        }
    }

    /// Ships the next lines. Returns `false` if there are none.
    fn ship_batch(&mut self) -> Result<bool, ShipError> {
        let batch = read_batch(&self.folder, &self.state.cursor, MAX_BATCH_BYTES)?;
        if batch.lines.is_empty() {
            return Ok(false);
        }
        self.sink.send(&batch.lines)?;
        if batch.missed > 0 {
            tracing::error!(lines = batch.missed, target_ = %self.state.target, "audit lines were removed before they were shipped");
        }
        if self.state.outage.take().is_some() {
            tracing::info!("audit lines are shipped to {} again", self.state.target);
        }
        self.state.missed += batch.missed;
        self.state.cursor = batch.next;
        self.state.shipped_ms = Some(now_ms());
        self.save();
        Ok(true)
    }

    /// Logged once per outage, also across restarts.
    fn report_outage(&mut self, error: &ShipError) {
        if self.state.outage.is_none() {
            tracing::warn!("audit lines can't be shipped; they stay in the local log, and it is tried again: {error}");
            self.state.outage = Some(Outage { since_ms: now_ms(), error: error.to_string() });
            self.save();
        }
    }

    /// Without the file, lines are shipped twice after a restart, which is better than a stop.
    fn save(&self) {
        if let Err(error) = self.state.write(&self.folder) {
            tracing::debug!(%error, "can't record how far the audit log was shipped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use toolbus_audit::{AuditLog, AuditOptions};

    /// Fails that many times.
    struct Flaky(u32);

    impl Sink for Flaky {
        fn send(&mut self, _: &[String]) -> Result<(), ShipError> {
            let fails = self.0 > 0;
            self.0 = self.0.saturating_sub(1);
            let error = || ShipError::Otlp { url: "http://x".into(), reason: "away".into() };
            if fails { Err(error()) } else { Ok(()) }
        }
    }

    #[test]
    fn an_outage_of_several_attempts_is_logged_once_and_so_is_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(AuditLog::open(folder.path(), AuditOptions::default()).expect("a log"));
        let messages = tempfile::NamedTempFile::new().expect("a file");
        let writer = Mutex::new(messages.reopen().expect("a file"));
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                std::fs::remove_file(folder.path().join("ship.json")).ok();
                let state = ShipState::of(folder.path(), &Target::File("/x".into()));
                let (folder, options) = (folder.path().to_owned(), ShipOptions::default());
                let mut shipping = Shipping { folder, state, sink: Box::new(Flaky(3)), options };
                let delays: Vec<u64> = (0..5).map(|_| shipping.step().as_millis() as u64).collect();
                assert!(delays[0] > 500 && delays[2] > 2 * delays[0], "{delays:?}");
                assert_eq!(delays[3..], [0, 1000], "the lines, then none");
            }
        });
        let text = std::fs::read_to_string(messages.path()).expect("text");
        assert_eq!(text.matches("can't be shipped").count(), 2, "{text}");
        assert_eq!(text.matches("are shipped to file:/x again").count(), 2, "{text}");
    }
}
