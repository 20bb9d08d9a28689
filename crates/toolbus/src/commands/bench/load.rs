//! A closed loop: a fixed number of operations is outstanding, and each is timed.

use futures_util::future::try_join_all;
use std::time::Duration;
use tokio::time::Instant;

/// Latencies of the operations of one measurement, sorted.
pub struct Latencies {
    sorted: Vec<Duration>,
    elapsed: Duration,
}

impl Latencies {
    pub fn new(mut latencies: Vec<Duration>, elapsed: Duration) -> Self {
        latencies.sort_unstable();
        Self { sorted: latencies, elapsed }
    }

    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    pub fn per_second(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that this fraction of the operations does not exceed.
    pub fn quantile(&self, fraction: f64) -> Duration {
        let rank = (self.count() as f64 * fraction).ceil() as usize;
        self.sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    pub fn max(&self) -> Duration {
        self.sorted.last().copied().unwrap_or_default()
    }
}

/// Repeats the operation in `in_flight` loops until the window is over; each loop does at least one. Fails with the first
/// error.
pub async fn drive<E, F: Future<Output = Result<(), E>>>(
    in_flight: u32,
    window: Duration,
    operation: impl Fn() -> F,
) -> Result<Latencies, E> {
    let begin = Instant::now();
    let one_loop = || async {
        let mut latencies = Vec::new();
        loop {
            latencies.push(timed(operation()).await?);
            if begin.elapsed() >= window {
                return Ok(latencies);
            }
        }
    };
    let latencies = try_join_all((0..in_flight).map(|_| one_loop())).await?;
    Ok(Latencies::new(latencies.concat(), begin.elapsed()))
}

/// The time that an operation takes.
pub async fn timed<E>(operation: impl Future<Output = Result<(), E>>) -> Result<Duration, E> {
    let start = Instant::now();
    operation.await?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::convert::Infallible;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn the_given_number_of_operations_is_outstanding_until_the_window_is_over() {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let operation = || async {
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            tokio::time::sleep(10 * MS).await;
            running.set(running.get() - 1);
            Ok::<(), Infallible>(())
        };
        let latencies = drive(4, 100 * MS, operation).await.expect("it never fails");
        assert_eq!((most.get(), latencies.count()), (4, 40));
        assert_eq!(latencies.per_second(), 400.0);
        assert_eq!(drive(1, Duration::ZERO, operation).await.expect("it never fails").count(), 1);
    }

    #[test]
    fn quantiles_are_latencies_that_occurred() {
        let latencies = Latencies::new((1..=10).rev().map(|ms| ms * MS).collect(), 100 * MS);
        let at = |fraction| latencies.quantile(fraction);
        assert_eq!((at(0.0), at(0.5), at(0.9), at(0.99)), (MS, 5 * MS, 9 * MS, 10 * MS));
        assert_eq!(latencies.max(), 10 * MS);
    }
}
