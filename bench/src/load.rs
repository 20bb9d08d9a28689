//! The closed-loop load generator: a fixed number of callers, each a task with one
//! operation outstanding, a warm-up, then a window in which completions count.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// How long to wait for outstanding operations after the end of the window.
const DRAIN_LIMIT: Duration = Duration::from_secs(15);

/// One connection of a contender. `once` is one operation: a call with its reply,
/// or a delivery with its receipt. Many may be outstanding on the same connection.
pub trait Load: Send + Sync + 'static {
    fn once(&self, body: &Bytes) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Duration and concurrency of a load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub in_flight: u32,
    pub warm_up: Duration,
    pub window: Duration,
    /// Operations after which the run ends early, warm-up included.
    pub limit: u64,
}

impl Plan {
    pub fn new(in_flight: u32, window: Duration) -> Self {
        let warm_up = window.mul_f64(0.2).clamp(Duration::from_millis(100), Duration::from_millis(500));
        Self { in_flight, warm_up, window, limit: u64::MAX }
    }
}

/// The measurement of one worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub operations: u64,
    pub seconds: f64,
    pub rate: f64,
    /// `None` if single operations are not timed.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

impl Sample {
    /// A sample of a run in which only the total was timed.
    pub fn of_total(operations: u64, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self { operations, seconds, rate: operations as f64 / seconds, p50_us: None, p99_us: None }
    }
}

/// Drives all connections concurrently and measures the operations that complete inside the window. If none does, it
/// waits for the first one, so that a slow machine gets a low rate instead of none.
pub async fn drive<L: Load>(connections: Vec<L>, body: Bytes, plan: Plan) -> anyhow::Result<Sample> {
    let begin = Instant::now() + plan.warm_up;
    let window = Window {
        begin,
        end: begin + plan.window,
        budget: Arc::new(AtomicU64::new(plan.limit)),
        counted: Arc::default(),
    };
    let mut callers = JoinSet::new();
    for connection in connections.into_iter().map(Arc::new) {
        for _ in 0..plan.in_flight {
            callers.spawn(call_repeatedly(Arc::clone(&connection), body.clone(), window.clone()));
        }
    }
    tokio::time::timeout(plan.warm_up + plan.window + DRAIN_LIMIT, collect(callers, window))
        .await
        .context("timed out waiting for outstanding operations")?
}

/// Fails if a reply differs from its request: a contender with wrong replies gets no rate.
pub fn ensure_echo(sent: &[u8], received: &[u8]) -> anyhow::Result<()> {
    ensure!(
        sent == received,
        "the reply ({} bytes) is not an echo of the request ({} bytes)",
        received.len(),
        sent.len()
    );
    Ok(())
}

#[derive(Clone)]
struct Window {
    begin: Instant,
    end: Instant,
    budget: Arc<AtomicU64>,
    /// Whether an operation completed since the beginning.
    counted: Arc<AtomicBool>,
}

impl Window {
    fn is_open(&self, now: Instant) -> bool {
        now <= self.end || !self.counted.load(Ordering::Relaxed)
    }

    fn spend(&self) -> bool {
        self.budget.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Latencies of one caller, and when its last counted operation completed.
struct CallerStats {
    latencies: Histogram<u64>,
    last: Option<Instant>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("the bounds are valid")
}

async fn call_repeatedly<L: Load>(connection: Arc<L>, body: Bytes, window: Window) -> anyhow::Result<CallerStats> {
    let mut stats = CallerStats { latencies: histogram(), last: None };
    let mut sent = Instant::now();
    while window.is_open(sent) && window.spend() {
        connection.once(&body).await?;
        let done = Instant::now();
        if done >= window.begin && window.is_open(done) {
            window.counted.store(true, Ordering::Relaxed);
            let nanoseconds = u64::try_from((done - sent).as_nanos()).unwrap_or(u64::MAX);
            stats.latencies.saturating_record(nanoseconds);
            stats.last = Some(done);
        }
        sent = done;
    }
    Ok(stats)
}

async fn collect(mut callers: JoinSet<anyhow::Result<CallerStats>>, window: Window) -> anyhow::Result<Sample> {
    let mut all = histogram();
    let mut last = None;
    while let Some(stats) = callers.join_next().await {
        let stats = stats.context("a caller panicked")??;
        all.add(stats.latencies).context("merge latencies")?;
        last = last.max(stats.last);
    }
    let last = last.context("nothing completed inside the window")?;
    let ended_early = window.budget.load(Ordering::Relaxed) == 0;
    let end = if ended_early { last } else { last.max(window.end) };
    let elapsed = end - window.begin;
    let microseconds = |quantile| Some(all.value_at_quantile(quantile) as f64 / 1_000.0);
    Ok(Sample { p50_us: microseconds(0.5), p99_us: microseconds(0.99), ..Sample::of_total(all.len(), elapsed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Instantaneous;

    impl Load for Instantaneous {
        async fn once(&self, _: &Bytes) -> anyhow::Result<()> {
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_limit_ends_a_run_early() {
        let plan = Plan { in_flight: 4, warm_up: Duration::ZERO, window: Duration::from_secs(30), limit: 1_000 };
        let sample = drive(vec![Instantaneous], Bytes::new(), plan).await.unwrap();
        assert_eq!(sample.operations, 1_000);
        assert!(sample.seconds < 30.0);
    }

    struct Slow;

    impl Load for Slow {
        async fn once(&self, _: &Bytes) -> anyhow::Result<()> {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(5) {
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_load_slower_than_its_window_still_has_a_rate() {
        let plan = Plan { in_flight: 1, warm_up: Duration::ZERO, window: Duration::from_millis(1), limit: u64::MAX };
        let sample = drive(vec![Slow], Bytes::new(), plan).await.unwrap();
        assert_eq!(sample.operations, 1);
        assert!(sample.seconds >= 0.005, "the time until the first completion counts: {}", sample.seconds);
    }

    #[test]
    fn a_wrong_reply_is_an_error() {
        assert!(ensure_echo(b"sent", b"sent").is_ok());
        assert!(ensure_echo(b"sent", b"else").is_err());
    }
}
