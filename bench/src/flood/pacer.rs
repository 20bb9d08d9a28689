//! Limits the rate of a hostile agent, and ends its requests at the end of the flood. Missed requests are not made up
//! for, so the rate is an upper limit.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

/// Requests due within this time are sent at once, because timers are not more precise.
const SLACK: Duration = Duration::from_millis(2);

pub struct Pacer {
    interval: Duration,
    end: Instant,
    next: Mutex<Instant>,
}

impl Pacer {
    pub fn new(per_second: f64, end: Instant) -> Self {
        Self { interval: Duration::from_secs_f64(1.0 / per_second), end, next: Mutex::new(Instant::now()) }
    }

    /// The same flood at another rate.
    pub fn at(&self, per_second: f64) -> Self {
        Self::new(per_second, self.end)
    }

    /// Waits until the next request may be sent; after the end of the flood, forever.
    pub async fn wait(&self) {
        let due = {
            let mut next = self.next.lock().expect("no code panics while it holds this lock");
            let due = (*next).max(Instant::now().checked_sub(SLACK).unwrap_or(*next));
            *next = due + self.interval;
            due
        };
        if due > Instant::now() + SLACK {
            tokio::time::sleep_until(due).await;
        }
        if Instant::now() >= self.end {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_made_up_for() {
        let pacer = Pacer::new(100.0, Instant::now() + Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(10)).await;
        let begin = Instant::now();
        for _ in 0..101 {
            pacer.wait().await;
        }
        let took = begin.elapsed();
        assert!(took > Duration::from_millis(980) && took < Duration::from_millis(1020), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_after_the_end() {
        let pacer = Pacer::new(100.0, Instant::now() + Duration::from_secs(1));
        let mut sent = 0;
        let flood = async {
            loop {
                pacer.wait().await;
                sent += 1;
            }
        };
        let ended: Result<(), _> = tokio::time::timeout(Duration::from_secs(5), flood).await;
        assert!(ended.is_err());
        assert!((98..=101).contains(&sent), "{sent}");
    }
}
