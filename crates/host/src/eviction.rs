//! When a search for an idle connection to close can succeed again. A search goes through all sessions of a server, of which there
//! can be thousands, and so can calls that wait for one: without this, each of them would search whenever a slot is returned.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Agents whose searches are remembered before those that are due again are forgotten.
const MAX_AGENTS: usize = 1024;

#[derive(Default)]
pub struct Evictions {
    vain: Mutex<Vain>,
}

/// The times at which searches that found nothing may be repeated.
#[derive(Default)]
struct Vain {
    among_all: Option<Instant>,
    among_own: HashMap<String, Instant>,
}

impl Evictions {
    /// When to search among the connections of an agent, or of all. `None`: now.
    pub fn next(&self, of: Option<&str>) -> Option<Instant> {
        let vain = self.lock();
        let next = match of {
            Some(agent) => vain.among_own.get(agent).copied(),
            None => vain.among_all,
        };
        next.filter(|at| *at > Instant::now())
    }

    /// A search found nothing, and none can find anything before `next`.
    pub fn found_nothing(&self, of: Option<&str>, next: Instant) {
        let (mut vain, now) = (self.lock(), Instant::now());
        match of {
            None => vain.among_all = Some(next),
            Some(agent) => {
                if vain.among_own.len() >= MAX_AGENTS {
                    vain.among_own.retain(|_, at| *at > now);
                }
                vain.among_own.insert(agent.to_owned(), next);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vain> {
        self.vain.lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_search_in_vain_is_repeated_only_when_it_can_succeed() {
        let (evictions, later) = (Evictions::default(), Instant::now() + Duration::from_secs(10));
        assert_eq!((evictions.next(None), evictions.next(Some("ann"))), (None, None));
        evictions.found_nothing(Some("ann"), later);
        assert_eq!(evictions.next(Some("ann")), Some(later));
        assert_eq!((evictions.next(None), evictions.next(Some("bob"))), (None, None), "other searches");
        evictions.found_nothing(None, later);
        assert_eq!(evictions.next(None), Some(later));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((evictions.next(None), evictions.next(Some("ann"))), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn agents_whose_search_is_due_are_forgotten() {
        let evictions = Evictions::default();
        for number in 0..3 * MAX_AGENTS {
            evictions.found_nothing(Some(&number.to_string()), Instant::now() + Duration::from_secs(1));
            tokio::time::advance(Duration::from_millis(2)).await;
        }
        assert!(evictions.lock().among_own.len() <= MAX_AGENTS);
    }
}
