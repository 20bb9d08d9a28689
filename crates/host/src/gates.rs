//! What limits count: how many calls there were lately, and how many there are now.

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

/// A call too many.
#[derive(Debug, PartialEq)]
pub struct TooOften {
    pub kind: LimitKind,
    pub rate: Rate,
    pub wait: Duration,
}

pub struct Gates {
    started: Instant,
    table: Mutex<HashMap<LimitKind, Gate>>,
}

#[derive(Default)]
struct Gate {
    bucket: Bucket,
    places: Option<(NonZeroU32, Arc<Semaphore>)>,
}

impl Default for Gates {
    fn default() -> Self {
        Self { started: Instant::now(), table: Mutex::default() }
    }
}

impl Gates {
    /// Counts the call against every rate, or against none if one of them is used up.
    pub fn count(&self, limits: &CallLimits) -> Result<(), TooOften> {
        if limits.counted.is_empty() {
            return Ok(());
        }
        let now = self.started.elapsed();
        let mut table = self.lock();
        let (mut filled, mut refused): (Vec<(&LimitKind, Bucket)>, Option<TooOften>) = (Vec::new(), None);
        for (limit, rate) in limits.counted.iter().filter_map(|limit| Some((limit, limit.rate?))) {
            let bucket = table.get(&limit.kind).map(|gate| gate.bucket).unwrap_or_default();
            match bucket.with_one_more(rate, now) {
                Ok(bucket) => filled.push((&limit.kind, bucket)),
                Err(wait) if refused.as_ref().is_none_or(|known| known.wait < wait) => {
                    refused = Some(TooOften { kind: limit.kind.clone(), rate, wait });
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

    /// Waits, in order, for a place under every limit on concurrency.
    pub async fn enter(&self, limits: &CallLimits) -> Vec<OwnedSemaphorePermit> {
        let mut permits = Vec::new();
        // Always in the same order, so that no two calls wait for each other.
        let mut wanted: Vec<_> = limits.counted.iter().filter_map(|limit| Some((limit, limit.concurrency?))).collect();
        wanted.sort_by_key(|(limit, _)| limit.kind.to_string());
        for (limit, most) in wanted {
            let places = self.places(&limit.kind, most);
            permits.push(places.acquire_owned().await.expect("these semaphores are never closed"));
        }
        permits
    }

    /// Where the number was changed, calls that run already are not counted any more.
    fn places(&self, kind: &LimitKind, most: NonZeroU32) -> Arc<Semaphore> {
        let mut table = self.lock();
        let gate = table.entry(kind.clone()).or_default();
        match &gate.places {
            Some((size, places)) if *size == most => Arc::clone(places),
            _ => {
                let places = Arc::new(Semaphore::new(most.get() as usize));
                gate.places = Some((most, Arc::clone(&places)));
                places
            }
        }
    }

    pub fn keep_only<'a>(&self, kinds: impl Iterator<Item = &'a LimitKind>) {
        let kinds: HashSet<&LimitKind> = kinds.collect();
        self.lock().retain(|kind, _| kinds.contains(kind));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LimitKind, Gate>> {
        self.table.lock().expect("nothing panics while it holds this lock")
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
    async fn a_refused_call_is_counted_nowhere_and_is_told_how_long_to_wait() {
        let (gates, limits) = (Gates::default(), limits(RATES));
        for _ in 0..2 {
            assert_eq!(gates.count(&limits), Ok(()));
        }
        for _ in 0..20 {
            let refused = gates.count(&limits).expect_err("used up");
            assert_eq!((refused.kind.to_string().as_str(), refused.wait.as_secs()), ("[roles.r]", 30));
        }
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(gates.count(&limits), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn rates_outlive_a_new_policy_that_still_has_them() {
        let (gates, limits) = (Gates::default(), limits(RATES));
        while gates.count(&limits).is_ok() {}
        gates.keep_only([LimitKind::Role("r".into())].iter());
        assert!(gates.count(&limits).is_err());
        gates.keep_only([].iter());
        assert!(gates.count(&limits).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_in_turn() {
        let limits = limits("[roles.r]\nallow=['t']\nconcurrency=1\n[limits.'t']\nconcurrency=5");
        let gates = Gates::default();
        let first = gates.enter(&limits).await;
        assert_eq!(first.len(), 2);
        let waiting = tokio::time::timeout(Duration::from_secs(5), gates.enter(&limits)).await;
        assert!(waiting.is_err(), "there is one place");
        drop(first);
        assert_eq!(gates.enter(&limits).await.len(), 2);
    }
}
