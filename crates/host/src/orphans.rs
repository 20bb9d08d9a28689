//! Calls whose callers are gone. A caller that was not connected at any look for a grace time is taken to be gone for good,
//! and its calls are ended as if it had called them off.

use crate::caller::{Caller, Cause};
use crate::callers;
use crate::host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Looks are no closer together, however short the grace.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Which callers were there at the last looks, and since when the others were not.
#[derive(Debug, Default)]
pub struct Sightings(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    there: BTreeMap<String, Instant>,
    absent_since: BTreeMap<String, Instant>,
}

impl Sightings {
    /// Takes note of a look at all callers, and returns those who are gone.
    fn note(&self, now: Instant, grace: Duration, callers: impl IntoIterator<Item = (String, bool)>) -> Vec<String> {
        let mut seen = self.lock();
        let mut before = std::mem::take(&mut *seen);
        let mut gone = Vec::new();
        for (mailbox, is_there) in callers {
            if is_there {
                seen.there.insert(mailbox, now);
                continue;
            }
            let since = before.absent_since.remove(&mailbox).unwrap_or(now);
            if now.duration_since(since) >= grace {
                gone.push(mailbox.clone());
            }
            seen.absent_since.insert(mailbox, since);
        }
        gone
    }

    /// Nobody can tell who is there, so nobody has been absent: after a broker was started again, all come back one by one.
    fn forget(&self) {
        *self.lock() = Seen::default();
    }

    /// Whether the caller was there a short while ago.
    fn is_fresh(&self, mailbox: &str, now: Instant, interval: Duration) -> bool {
        self.lock().there.get(mailbox).is_some_and(|at| now.duration_since(*at) <= interval)
    }

    fn saw(&self, mailbox: &str, now: Instant) {
        self.lock().there.insert(mailbox.to_owned(), now);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

/// Looks for callers that are gone, until the host ends.
pub async fn watch(host: Arc<Host>) {
    let Some(grace) = host.options.limits.caller_grace else { return };
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval(grace)) => look(&host, grace).await,
            () = host.shutdown.cancelled() => return,
        }
    }
}

fn interval(grace: Duration) -> Duration {
    (grace / 4).max(SHORTEST_INTERVAL)
}

async fn look(host: &Host, grace: Duration) {
    let waiting: Vec<Caller> = host.running.all().into_iter().filter(|caller| !is_task(caller)).collect();
    let mailboxes: BTreeSet<String> = waiting.iter().map(|caller| caller.mailbox().to_owned()).collect();
    let mailboxes: Vec<String> = mailboxes.into_iter().collect();
    let Some(there) = callers::connected(host.outbox.client(), &mailboxes).await else {
        return host.sightings.forget();
    };
    let gone = host.sightings.note(Instant::now(), grace, mailboxes.into_iter().zip(there));
    for caller in waiting.iter().filter(|caller| gone.iter().any(|mailbox| mailbox == caller.mailbox())) {
        // Whoever was joined to the call waits for it on.
        if caller.progress.joiners().is_empty() && !caller.cancel.is_fired() {
            tracing::info!(id = %caller.id(), caller = caller.mailbox(), "the caller is gone; its call is ended");
            caller.cancel.fire_for(Cause::CallerGone, Some("the caller is gone".to_owned()));
        }
    }
}

/// A task goes on without anybody.
fn is_task(caller: &Caller) -> bool {
    caller.progress.about().is_some_and(|about| about.is_task)
}

impl Host {
    /// Returns when a call may begin that has waited for long: once its caller was seen, or somebody else waits for it too,
    /// or nobody can tell. Should the caller be gone, the call is called off meanwhile.
    pub async fn wait_for_caller(&self, caller: &Caller) {
        let Some(grace) = self.options.limits.caller_grace.filter(|_| !is_task(caller)) else { return };
        if written_ago(caller) < grace || self.sightings.is_fresh(caller.mailbox(), Instant::now(), interval(grace)) {
            return;
        }
        while !caller.cancel.is_fired() && caller.progress.joiners().is_empty() {
            match callers::is_connected(self.outbox.client(), caller.mailbox()).await {
                Some(true) => return self.sightings.saw(caller.mailbox(), Instant::now()),
                None => return,
                Some(false) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(SHORTEST_INTERVAL) => {}
                () = caller.cancel.fired() => return,
                () = self.shutdown.cancelled() => return,
            }
        }
    }
}

/// How long ago the call was made, by its caller's clock. Where that is wrong, the broker is asked once more than needed, or
/// the next look finds out.
fn written_ago(caller: &Caller) -> Duration {
    let ago = jiff::Timestamp::now().as_nanosecond() - i128::from(caller.request.created_at.0);
    Duration::from_nanos(u64::try_from(ago).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(120);

    fn note(sightings: &Sightings, now: Instant, callers: &[(&str, bool)]) -> Vec<String> {
        sightings.note(now, GRACE, callers.iter().map(|(name, there)| ((*name).to_owned(), *there)))
    }

    #[test]
    fn a_caller_is_gone_when_it_was_absent_at_every_look_of_the_grace() {
        let (sightings, start) = (Sightings::default(), Instant::now());
        for seconds in [0, 30, 60, 90] {
            let now = start + Duration::from_secs(seconds);
            assert!(note(&sightings, now, &[("a", false), ("b", seconds != 60)]).is_empty(), "{seconds}");
        }
        assert_eq!(note(&sightings, start + GRACE, &[("a", false), ("b", false)]), ["a"]);
        assert!(note(&sightings, start + GRACE * 2 - Duration::from_secs(1), &[("b", false)]).is_empty());
        assert_eq!(note(&sightings, start + GRACE * 2, &[("b", false)]), ["b"]);
    }

    #[test]
    fn a_caller_that_was_there_once_in_between_begins_anew() {
        let (sightings, start) = (Sightings::default(), Instant::now());
        note(&sightings, start, &[("a", false)]);
        note(&sightings, start + GRACE / 2, &[("a", true)]);
        note(&sightings, start + GRACE / 2, &[("a", false)]);
        assert!(note(&sightings, start + GRACE, &[("a", false)]).is_empty());
        assert_eq!(note(&sightings, start + GRACE + GRACE / 2, &[("a", false)]), ["a"]);
    }

    #[test]
    fn nobody_is_gone_by_what_nobody_could_see() {
        let (sightings, start) = (Sightings::default(), Instant::now());
        note(&sightings, start, &[("a", false)]);
        sightings.forget();
        assert!(note(&sightings, start + GRACE, &[("a", false)]).is_empty());
    }

    #[test]
    fn callers_without_calls_are_forgotten() {
        let (sightings, start) = (Sightings::default(), Instant::now());
        note(&sightings, start, &[("a", true), ("b", false)]);
        note(&sightings, start, &[]);
        assert!(sightings.lock().there.is_empty() && sightings.lock().absent_since.is_empty());
    }
}
