//! Rate and concurrency limits of the policy, with their counters.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use toolbus_policy::{Bucket, Decision, LimitKind, Rate};

/// The limits on one call, detached from the policy that set them.
#[derive(Debug, Default)]
pub struct CallLimits {
    pub max_result: Option<(u64, LimitKind)>,
    pub deadline: Option<(Duration, LimitKind)>,
    counted: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    kind: LimitKind,
    rate: Option<Rate>,
    concurrency: Option<NonZeroU32>,
}

impl CallLimits {
    pub fn of(decision: &Decision<'_>) -> Self {
        let counted = decision.limits.iter().filter(|limit| limit.rate.is_some() || limit.concurrency.is_some());
        Self {
            max_result: decision.max_result().map(|(size, limit)| (size, limit.kind.clone())),
            deadline: decision.deadline().map(|(time, limit)| (time, limit.kind.clone())),
            counted: counted
                .map(|limit| Counted { kind: limit.kind.clone(), rate: limit.rate, concurrency: limit.concurrency })
                .collect(),
        }
    }
}

/// A rate limit that a call exceeds.
#[derive(Debug, PartialEq)]
pub struct RateExceeded {
    pub kind: LimitKind,
    pub rate: Rate,
    pub wait: Duration,
}

pub struct Limiters {
    started: Instant,
    table: Mutex<HashMap<LimitKind, Limiter>>,
}

#[derive(Default)]
struct Limiter {
    bucket: Bucket,
    semaphore: Option<(NonZeroU32, Arc<Semaphore>)>,
}

impl Default for Limiters {
    fn default() -> Self {
        Self { started: Instant::now(), table: Mutex::default() }
    }
}

impl Limiters {
    /// Counts the call against every rate limit, or against none if one of them is exceeded.
    pub fn count_call(&self, limits: &CallLimits) -> Result<(), RateExceeded> {
        if limits.counted.is_empty() {
            return Ok(());
        }
        let now = self.started.elapsed();
        let mut table = self.lock();
        let (mut filled, mut refused): (Vec<(&LimitKind, Bucket)>, Option<RateExceeded>) = (Vec::new(), None);
        for (limit, rate) in limits.counted.iter().filter_map(|limit| Some((limit, limit.rate?))) {
            let bucket = table.get(&limit.kind).map(|limiter| limiter.bucket).unwrap_or_default();
            match bucket.with_one_more(rate, now) {
                Ok(bucket) => filled.push((&limit.kind, bucket)),
                Err(wait) if refused.as_ref().is_none_or(|known| known.wait < wait) => {
                    refused = Some(RateExceeded { kind: limit.kind.clone(), rate, wait });
                }
                Err(_) => {}
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        for (kind, bucket) in filled {
            table.entry(kind.clone()).or_default().bucket = bucket;
        }
        Ok(())
    }

    /// Waits, in FIFO order, for a permit of every concurrency limit.
    pub async fn acquire(&self, limits: &CallLimits) -> Vec<OwnedSemaphorePermit> {
        let mut permits = Vec::new();
        // A fixed order of acquisition prevents deadlocks.
        let mut wanted: Vec<_> = limits.counted.iter().filter_map(|limit| Some((limit, limit.concurrency?))).collect();
        wanted.sort_by_key(|(limit, _)| limit.kind.to_string());
        for (limit, max) in wanted {
            let semaphore = self.semaphore(&limit.kind, max);
            permits.push(semaphore.acquire_owned().await.expect("these semaphores are never closed"));
        }
        permits
    }

    /// The semaphore of a limit. If its size was changed, calls that are already running hold permits of the old
    /// semaphore and are no longer counted.
    fn semaphore(&self, kind: &LimitKind, max: NonZeroU32) -> Arc<Semaphore> {
        let mut table = self.lock();
        let limiter = table.entry(kind.clone()).or_default();
        match &limiter.semaphore {
            Some((size, semaphore)) if *size == max => Arc::clone(semaphore),
            _ => {
                let semaphore = Arc::new(Semaphore::new(max.get() as usize));
                limiter.semaphore = Some((max, Arc::clone(&semaphore)));
                semaphore
            }
        }
    }

    pub fn retain<'a>(&self, kinds: impl Iterator<Item = &'a LimitKind>) {
        let kinds: HashSet<&LimitKind> = kinds.collect();
        self.lock().retain(|kind, _| kinds.contains(kind));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LimitKind, Limiter>> {
        self.table.lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_policy::{Arguments, Item, PolicySet, Question};

    fn limits(text: &str) -> CallLimits {
        let (set, _) = PolicySet::read(text).expect("rules");
        let item = Item::Tool("t");
        CallLimits::of(&set.decide(&Question { role: Some("r"), server: "s", item, arguments: Arguments::Absent }))
    }

    const RATES: &str = "[roles.r]\nallow=['t']\nrate='2/min'\n[limits.'s/t']\nrate='10/s'";

    #[tokio::test(start_paused = true)]
    async fn a_refused_call_is_not_counted_and_gets_the_time_to_wait() {
        let (limiters, limits) = (Limiters::default(), limits(RATES));
        for _ in 0..2 {
            assert_eq!(limiters.count_call(&limits), Ok(()));
        }
        for _ in 0..20 {
            let refused = limiters.count_call(&limits).expect_err("used up");
            assert_eq!((refused.kind.to_string().as_str(), refused.wait.as_secs()), ("[roles.r]", 30));
        }
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(limiters.count_call(&limits), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn rate_counters_survive_a_policy_reload_that_keeps_the_limit() {
        let (limiters, limits) = (Limiters::default(), limits(RATES));
        while limiters.count_call(&limits).is_ok() {}
        limiters.retain([LimitKind::Role("r".into())].iter());
        assert!(limiters.count_call(&limits).is_err());
        limiters.retain([].iter());
        assert!(limiters.count_call(&limits).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_permits_are_released_and_reused() {
        let limits = limits("[roles.r]\nallow=['t']\nconcurrency=1\n[limits.'t']\nconcurrency=5");
        let limiters = Limiters::default();
        let first = limiters.acquire(&limits).await;
        assert_eq!(first.len(), 2);
        let waiting = tokio::time::timeout(Duration::from_secs(5), limiters.acquire(&limits)).await;
        assert!(waiting.is_err(), "one permit only");
        drop(first);
        assert_eq!(limiters.acquire(&limits).await.len(), 2);
    }
}
