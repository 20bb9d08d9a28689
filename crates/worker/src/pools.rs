//! What a worker remembers about pools: how many of its calls each member has, and which member keeps the state of a session.

use crate::worker::lock;
use hashbrown::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of remembered sessions. A full table is cleared.
const MAX_PINS: usize = 20_000;
/// How long a host is not asked that left a question unanswered.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Pools {
    /// Calls in progress per host.
    loads: Mutex<HashMap<String, u32>>,
    /// Since when hosts don't answer questions.
    silent: Mutex<HashMap<String, Instant>>,
    /// The host of each session at each pool.
    pins: Mutex<HashMap<(String, String), String>>,
}

impl Pools {
    pub fn load(&self, host: &str) -> u32 {
        lock(&self.loads).get(host).copied().unwrap_or_default()
    }

    /// Counts a call at the host until the guard is dropped.
    pub fn count(self: &Arc<Self>, host: &str) -> CountedCall {
        *lock(&self.loads).entry_ref(host).or_default() += 1;
        CountedCall { pools: Arc::clone(self), host: host.to_owned() }
    }

    /// Whether the host left a question unanswered a short time ago.
    pub fn is_silent(&self, host: &str) -> bool {
        lock(&self.silent).get(host).is_some_and(|since| since.elapsed() < ASK_AGAIN_AFTER)
    }

    pub fn note_silent(&self, host: &str) {
        let mut silent = lock(&self.silent);
        silent.retain(|_, since| since.elapsed() < ASK_AGAIN_AFTER);
        silent.insert(host.to_owned(), Instant::now());
    }

    /// The host that keeps the session's state.
    pub fn pinned(&self, session: &str, pool: &str) -> Option<String> {
        lock(&self.pins).get(&(session.to_owned(), pool.to_owned())).cloned()
    }

    pub fn pin(&self, session: &str, pool: &str, host: &str) {
        let mut pins = lock(&self.pins);
        if pins.len() >= MAX_PINS {
            pins.clear();
        }
        pins.insert((session.to_owned(), pool.to_owned()), host.to_owned());
    }

    /// The pools and hosts of a session.
    pub fn pins_of(&self, session: &str) -> Vec<(String, String)> {
        let pins = lock(&self.pins);
        let own = pins.iter().filter(|((of, _), _)| of == session);
        own.map(|((_, pool), host)| (pool.clone(), host.clone())).collect()
    }

    pub fn forget(&self, session: &str) {
        lock(&self.pins).retain(|(of, _), _| of != session);
    }
}

/// A call in progress at a host.
pub struct CountedCall {
    pools: Arc<Pools>,
    host: String,
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let mut loads = lock(&self.pools.loads);
        if let Some(load) = loads.get_mut(&self.host) {
            *load -= 1;
            if *load == 0 {
                loads.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_while_they_are_in_progress() {
        let pools = Arc::<Pools>::default();
        let (one, other) = (pools.count("a"), pools.count("a"));
        assert_eq!((pools.load("a"), pools.load("b")), (2, 0));
        drop(one);
        assert_eq!(pools.load("a"), 1);
        drop(other);
        assert_eq!(lock(&pools.loads).len(), 0);
    }

    #[test]
    fn a_session_has_one_host_per_pool_until_it_ends() {
        let pools = Pools::default();
        pools.pin("s", "render", "a");
        pools.pin("s", "render", "b");
        pools.pin("t", "render", "a");
        assert_eq!(pools.pinned("s", "render").as_deref(), Some("b"));
        assert_eq!(pools.pins_of("s"), [("render".to_owned(), "b".to_owned())]);
        pools.forget("s");
        assert_eq!((pools.pinned("s", "render"), pools.pinned("t", "render").as_deref()), (None, Some("a")));
    }
}
