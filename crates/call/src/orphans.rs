//! Orphaned calls. A caller that was disconnected at every check during a grace time is considered gone, and its calls
//! are cancelled, unless other calls wait for them.

use crate::cancel::Cause;
use crate::event::{CallNo, Inspected, Millis};
use crate::machine::{Asked, CallMachine, Context};
use crate::planted::PlantedBug;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum time between two checks, however short the grace.
const MIN_INTERVAL: Millis = 1_000;

/// Which callers were connected at the last check, and since when the others have been disconnected.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    connected: BTreeMap<ByteString, Millis>,
    absent_since: BTreeMap<ByteString, Millis>,
    next_check: Option<Millis>,
}

fn interval(grace: Millis) -> Millis {
    (grace / 4).max(MIN_INTERVAL)
}

impl Presence {
    /// Records a check of all callers; returns those that are gone.
    fn record_check(
        &mut self,
        now: Millis,
        grace: Millis,
        callers: impl IntoIterator<Item = (ByteString, bool)>,
    ) -> Vec<ByteString> {
        let mut absent_before = std::mem::take(&mut self.absent_since);
        self.connected.clear();
        let mut gone = Vec::new();
        for (caller, is_connected) in callers {
            if is_connected {
                self.connected.insert(caller, now);
                continue;
            }
            let since = absent_before.remove(&caller).unwrap_or(now);
            if now.saturating_sub(since) >= grace {
                gone.push(caller.clone());
            }
            self.absent_since.insert(caller, since);
        }
        gone
    }

    /// Forgets all absences. Used when the broker can't be asked: after it restarts, callers reconnect one by one.
    fn clear(&mut self) {
        self.connected.clear();
        self.absent_since.clear();
    }

    /// Whether the caller was connected a short time ago.
    pub fn is_fresh(&self, caller: &ByteString, now: Millis, grace: Option<Millis>) -> bool {
        let limit = grace.map_or(0, interval);
        self.connected.get(caller).is_some_and(|at| now.saturating_sub(*at) <= limit)
    }

    pub fn record_present(&mut self, caller: ByteString, now: Millis) {
        self.connected.insert(caller, now);
    }

    pub fn next_check(&self) -> Option<Millis> {
        self.next_check
    }
}

impl<A: Clone> CallMachine<A> {
    /// Asks the broker about the callers of all calls, once per interval.
    pub(crate) fn check_orphans(&mut self, cx: &mut Context<'_, A>) {
        let Some(grace) = self.options.caller_grace else { return };
        if self.calls.is_empty() {
            self.presence.next_check = None;
            return;
        }
        let next = *self.presence.next_check.get_or_insert(cx.now.ms + interval(grace));
        if cx.now.ms < next {
            return;
        }
        self.presence.next_check = Some(cx.now.ms + interval(grace));
        let waiting = self.calls.values().filter(|call| !call.accepted);
        let callers: BTreeSet<ByteString> = waiting.map(|call| call.request.key.caller.clone()).collect();
        if !callers.is_empty() {
            let callers: Vec<ByteString> = callers.into_iter().collect();
            self.ask(Asked::Orphans(callers.clone()), callers, Vec::new(), cx);
        }
    }

    pub(crate) fn orphans_inspected(
        &mut self,
        callers: &[ByteString],
        view: Option<Inspected>,
        cx: &mut Context<'_, A>,
    ) {
        let Some(grace) = self.options.caller_grace else { return };
        let Some(view) = view.filter(|view| view.connected.len() == callers.len()) else {
            return self.presence.clear();
        };
        let checked = callers.iter().cloned().zip(view.connected);
        let gone = self.presence.record_check(cx.now.ms, grace, checked);
        let with_joiner = self.is_planted(PlantedBug::OrphanWithJoiner);
        let is_orphan = |no: &CallNo, call: &crate::call::Call<A>| {
            let is_awaited = self.joiners.contains_key(no) && !with_joiner;
            !call.accepted && !is_awaited && gone.contains(&call.request.key.caller)
        };
        let orphans: Vec<CallNo> =
            self.calls.iter().filter(|(no, call)| is_orphan(no, call)).map(|(no, _)| *no).collect();
        for no in orphans {
            self.cancel(no, Cause::CallerGone, Some("the caller is gone".to_owned()), cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Millis = 120_000;

    fn check(presence: &mut Presence, now: Millis, callers: &[(&str, bool)]) -> Vec<ByteString> {
        presence.record_check(now, GRACE, callers.iter().map(|(name, connected)| ((*name).into(), *connected)))
    }

    #[test]
    fn a_caller_is_gone_if_it_was_absent_at_every_check_of_the_grace() {
        let mut presence = Presence::default();
        for now in [0, 30_000, 60_000, 90_000] {
            assert!(check(&mut presence, now, &[("a", false), ("b", now != 60_000)]).is_empty(), "{now}");
        }
        assert_eq!(check(&mut presence, GRACE, &[("a", false), ("b", false)]), ["a"]);
        assert!(check(&mut presence, GRACE * 2 - 30_001, &[("b", false)]).is_empty());
        assert_eq!(check(&mut presence, GRACE * 2, &[("b", false)]), ["b"]);
    }

    #[test]
    fn a_caller_that_was_connected_in_between_gets_a_new_grace() {
        let mut presence = Presence::default();
        check(&mut presence, 0, &[("a", false)]);
        check(&mut presence, GRACE / 2, &[("a", true)]);
        check(&mut presence, GRACE / 2, &[("a", false)]);
        assert!(check(&mut presence, GRACE, &[("a", false)]).is_empty());
        assert_eq!(check(&mut presence, GRACE + GRACE / 2, &[("a", false)]), ["a"]);
    }

    #[test]
    fn absences_before_a_failed_check_do_not_count() {
        let mut presence = Presence::default();
        check(&mut presence, 0, &[("a", false)]);
        presence.clear();
        assert!(check(&mut presence, GRACE, &[("a", false)]).is_empty());
    }

    #[test]
    fn callers_without_calls_are_forgotten() {
        let mut presence = Presence::default();
        check(&mut presence, 0, &[("a", true), ("b", false)]);
        check(&mut presence, 0, &[]);
        assert!(presence.connected.is_empty() && presence.absent_since.is_empty());
    }
}
