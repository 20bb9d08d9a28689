//! When to sync entries that no writer waits for, such as a RESULT.
//!
//! Only one sync runs at a time, so a START that arrives during a deferred sync would wait for two. The next START takes
//! earlier entries along for free. While STARTs arrive regularly, a deferred sync is therefore put off past the moment
//! when the next one is expected.

use std::time::{Duration, Instant};

/// Age at which an entry without a waiting writer is synced. The thread may notice up to one interval late.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum age while another sync is expected to take the entry along.
const MAX_DEFERRAL: Duration = Duration::from_millis(100);

/// The schedule of deferred syncs.
#[derive(Default)]
pub struct Deferral {
    /// Time of the oldest write that is not synced.
    unsynced_since: Option<Instant>,
    /// Time of the last append with a waiting writer.
    last_wait: Option<Instant>,
    /// Time between the last two of them.
    gap: Option<Duration>,
}

impl Deferral {
    /// An entry was appended.
    pub fn appended(&mut self, waits: bool, now: Instant) {
        self.unsynced_since.get_or_insert(now);
        if waits {
            self.gap = self.last_wait.map(|last| now - last);
            self.last_wait = Some(now);
        }
    }

    /// A sync of all entries begins.
    pub fn begins(&mut self) {
        self.unsynced_since = None;
    }

    /// Whether all entries are synced.
    pub fn is_clean(&self) -> bool {
        self.unsynced_since.is_none()
    }

    /// Whether a sync is due although no writer waits.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due_at().is_some_and(|at| now >= at)
    }

    fn due_at(&self) -> Option<Instant> {
        let since = self.unsynced_since?;
        let (soonest, latest) = (since + SYNC_INTERVAL, since + MAX_DEFERRAL);
        let Some((last, gap)) = self.last_wait.zip(self.gap) else { return Some(soonest) };
        let is_expected = last + gap <= latest;
        Some(if is_expected { (last + 2 * gap).clamp(soonest, latest) } else { soonest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends of STARTs at these times, and of a RESULT one millisecond after the last; returns when it is due.
    fn due_after(starts: &[u64]) -> u64 {
        let (zero, mut deferral) = (Instant::now(), Deferral::default());
        let at = |ms: u64| zero + Duration::from_millis(ms);
        for start in starts {
            deferral.appended(true, at(*start));
            deferral.begins();
        }
        let result = starts.last().copied().unwrap_or_default() + 1;
        deferral.appended(false, at(result));
        deferral.appended(false, at(result + 5));
        let due = (0..500).find(|ms| deferral.is_due(at(result + ms))).expect("every entry is synced");
        assert!(!deferral.is_clean() && due <= 100);
        due
    }

    #[test]
    fn a_deferred_sync_lets_an_expected_start_pass_first() {
        assert_eq!(due_after(&[]), 10);
        assert_eq!(due_after(&[0]), 10, "one START says nothing about the next");
        assert_eq!(due_after(&[0, 2]), 10, "the next one is over by then");
        assert_eq!(due_after(&[0, 15]), 29, "expected after 15 ms; it is given as long again");
        assert_eq!(due_after(&[0, 80]), 100, "no entry waits longer");
        assert_eq!(due_after(&[0, 300]), 10, "the next one is too far off to wait for");
        assert_eq!(due_after(&[0, 300, 320]), 39, "the last gap counts");
    }
}
