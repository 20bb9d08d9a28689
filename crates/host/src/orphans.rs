//! Orphaned calls. A caller that was disconnected at every check during a grace time is considered gone, and its calls
//! are cancelled.

use crate::caller::{Caller, Cause};
use crate::callers;
use crate::host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two checks, however short the grace.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Which callers were connected at the last check, and since when the others have been disconnected.
#[derive(Debug, Default)]
pub struct CallerPresence(Mutex<Checked>);

#[derive(Debug, Default)]
struct Checked {
    connected: BTreeMap<String, Instant>,
    absent_since: BTreeMap<String, Instant>,
}

impl CallerPresence {
    /// Records a check of all callers; returns those that are gone.
    fn record_check(
        &self,
        now: Instant,
        grace: Duration,
        callers: impl IntoIterator<Item = (String, bool)>,
    ) -> Vec<String> {
        let mut checked = self.lock();
        let mut before = std::mem::take(&mut *checked);
        let mut gone = Vec::new();
        for (mailbox, is_connected) in callers {
            if is_connected {
                checked.connected.insert(mailbox, now);
                continue;
            }
            let since = before.absent_since.remove(&mailbox).unwrap_or(now);
            if now.duration_since(since) >= grace {
                gone.push(mailbox.clone());
            }
            checked.absent_since.insert(mailbox, since);
        }
        gone
    }

    /// Forgets all absences. Used when the broker can't be asked: after it restarts, callers reconnect one by one.
    fn clear(&self) {
        *self.lock() = Checked::default();
    }

    /// Whether the caller was connected at most `interval` ago.
    fn is_fresh(&self, mailbox: &str, now: Instant, interval: Duration) -> bool {
        self.lock().connected.get(mailbox).is_some_and(|at| now.duration_since(*at) <= interval)
    }

    fn record_present(&self, mailbox: &str, now: Instant) {
        self.lock().connected.insert(mailbox.to_owned(), now);
    }

    fn lock(&self) -> MutexGuard<'_, Checked> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

/// Checks for orphaned calls until the host shuts down.
pub async fn watch(host: Arc<Host>) {
    let Some(grace) = host.options.limits.caller_grace else { return };
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval(grace)) => check_callers(&host, grace).await,
            () = host.shutdown.cancelled() => return,
        }
    }
}

fn interval(grace: Duration) -> Duration {
    (grace / 4).max(MIN_INTERVAL)
}

async fn check_callers(host: &Host, grace: Duration) {
    let waiting: Vec<Caller> = host.running.all().into_iter().filter(|caller| !is_task(caller)).collect();
    let mailboxes: BTreeSet<String> = waiting.iter().map(|caller| caller.mailbox().to_owned()).collect();
    let mailboxes: Vec<String> = mailboxes.into_iter().collect();
    let Some(connected) = callers::connected(host.outbox.client(), &mailboxes).await else {
        return host.presence.clear();
    };
    let gone = host.presence.record_check(Instant::now(), grace, mailboxes.into_iter().zip(connected));
    for caller in waiting.iter().filter(|caller| gone.iter().any(|mailbox| mailbox == caller.mailbox())) {
        // Calls that joined this one still wait for it.
        if caller.progress.joiners().is_empty() && !caller.cancel.is_fired() {
            tracing::info!(id = %caller.id(), caller = caller.mailbox(), "cancelling a call whose caller is gone");
            caller.cancel.fire_for(Cause::CallerGone, Some("the caller is gone".to_owned()));
        }
    }
}

/// Tasks run without their caller.
fn is_task(caller: &Caller) -> bool {
    caller.progress.description().is_some_and(|description| description.is_task)
}

impl Host {
    /// Waits until a call that was queued for longer than the grace may start: its caller is connected, another call
    /// has joined it, or the broker can't tell. If the caller stays disconnected, the call is cancelled meanwhile.
    pub async fn wait_for_caller(&self, caller: &Caller) {
        let Some(grace) = self.options.limits.caller_grace.filter(|_| !is_task(caller)) else { return };
        if written_ago(caller) < grace || self.presence.is_fresh(caller.mailbox(), Instant::now(), interval(grace)) {
            return;
        }
        while !caller.cancel.is_fired() && caller.progress.joiners().is_empty() {
            match callers::is_connected(self.outbox.client(), caller.mailbox()).await {
                Some(true) => return self.presence.record_present(caller.mailbox(), Instant::now()),
                None => return,
                Some(false) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(MIN_INTERVAL) => {}
                () = caller.cancel.fired() => return,
                () = self.shutdown.cancelled() => return,
            }
        }
    }
}

/// Time since the call was created, by its caller's clock. A wrong clock costs one more query of the broker, or the
/// next check cancels the call.
fn written_ago(caller: &Caller) -> Duration {
    let ago = jiff::Timestamp::now().as_nanosecond() - i128::from(caller.request.created_at.0);
    Duration::from_nanos(u64::try_from(ago).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(120);

    fn record_check(presence: &CallerPresence, now: Instant, callers: &[(&str, bool)]) -> Vec<String> {
        presence.record_check(now, GRACE, callers.iter().map(|(name, connected)| ((*name).to_owned(), *connected)))
    }

    #[test]
    fn a_caller_is_gone_if_it_was_absent_at_every_check_of_the_grace() {
        let (presence, start) = (CallerPresence::default(), Instant::now());
        for seconds in [0, 30, 60, 90] {
            let now = start + Duration::from_secs(seconds);
            assert!(record_check(&presence, now, &[("a", false), ("b", seconds != 60)]).is_empty(), "{seconds}");
        }
        assert_eq!(record_check(&presence, start + GRACE, &[("a", false), ("b", false)]), ["a"]);
        assert!(record_check(&presence, start + GRACE * 2 - Duration::from_secs(1), &[("b", false)]).is_empty());
        assert_eq!(record_check(&presence, start + GRACE * 2, &[("b", false)]), ["b"]);
    }

    #[test]
    fn a_caller_that_was_connected_in_between_gets_a_new_grace() {
        let (presence, start) = (CallerPresence::default(), Instant::now());
        record_check(&presence, start, &[("a", false)]);
        record_check(&presence, start + GRACE / 2, &[("a", true)]);
        record_check(&presence, start + GRACE / 2, &[("a", false)]);
        assert!(record_check(&presence, start + GRACE, &[("a", false)]).is_empty());
        assert_eq!(record_check(&presence, start + GRACE + GRACE / 2, &[("a", false)]), ["a"]);
    }

    #[test]
    fn absences_before_a_failed_check_do_not_count() {
        let (presence, start) = (CallerPresence::default(), Instant::now());
        record_check(&presence, start, &[("a", false)]);
        presence.clear();
        assert!(record_check(&presence, start + GRACE, &[("a", false)]).is_empty());
    }

    #[test]
    fn callers_without_calls_are_forgotten() {
        let (presence, start) = (CallerPresence::default(), Instant::now());
        record_check(&presence, start, &[("a", true), ("b", false)]);
        record_check(&presence, start, &[]);
        assert!(presence.lock().connected.is_empty() && presence.lock().absent_since.is_empty());
    }
}
