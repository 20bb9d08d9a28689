//! Orphaned calls. The broker notifies the host when the caller of a call in progress connects or disconnects; a call
//! whose caller stays disconnected for a grace time is cancelled, unless other calls wait for it.
//!
//! Only calls that take a while are followed, and each caller once, so there are at most as many follows as calls. If
//! the broker can't tell, nothing is assumed: a caller that is reported as disconnected afterwards gets a new grace.

use crate::call::State;
use crate::cancel::Cause;
use crate::effect::Effect;
use crate::event::{CallNo, Millis};
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Most calls end earlier, and their callers are not followed.
pub(crate) const FOLLOW_AFTER: Millis = 1_000;

/// The callers that the host follows.
pub(crate) type FollowedCallers = HashMap<ByteString, FollowedCaller>;

#[derive(Debug, Default)]
pub(crate) struct FollowedCaller {
    /// Its calls in progress that are followed.
    calls: BTreeSet<CallNo>,
    pub presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Presence {
    /// The broker has not reported yet.
    #[default]
    Awaited,
    /// The broker can't tell.
    Unknown,
    Connected,
    Disconnected,
}

/// When an orphan that is about to run is looked at again.
const RECHECK_AFTER: Millis = 100;

impl<A: Clone> CallMachine<A> {
    /// Has the caller of a call followed.
    pub(crate) fn follow_caller(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        call.follow_at = None;
        let caller = call.request.key.caller.clone();
        let followed = self.callers.entry(caller.clone()).or_default();
        if followed.calls.is_empty() {
            cx.out.push(Effect::Follow { caller });
        }
        if followed.calls.insert(no) {
            self.start_grace(no, cx);
        }
    }

    /// The call has ended, or has no caller any more.
    pub(crate) fn unfollow_caller(&mut self, no: CallNo, caller: &ByteString, cx: &mut Context<'_, A>) {
        let Some(followed) = self.callers.get_mut(caller) else { return };
        if followed.calls.remove(&no) && followed.calls.is_empty() {
            self.callers.remove(caller);
            cx.out.push(Effect::Unfollow { caller: caller.clone() });
        }
    }

    pub(crate) fn followed(&mut self, caller: &ByteString, connected: Option<bool>, cx: &mut Context<'_, A>) {
        let Some(followed) = self.callers.get_mut(caller) else { return };
        let presence = match connected {
            Some(true) => Presence::Connected,
            Some(false) => Presence::Disconnected,
            None => Presence::Unknown,
        };
        if std::mem::replace(&mut followed.presence, presence) == presence {
            return;
        }
        let is_ignored = self.options.is_planted(PlantedBug::CallerBackIgnored) && presence == Presence::Connected;
        for no in followed.calls.clone() {
            if !is_ignored {
                self.start_grace(no, cx);
            }
            if self.awaits_caller(no) {
                self.wake(no);
            }
        }
    }

    pub(crate) fn presence_of(&self, caller: &ByteString) -> Presence {
        self.callers.get(caller).map_or(Presence::Awaited, |followed| followed.presence)
    }

    /// Starts the grace of a call whose caller is disconnected; ends that of any other.
    pub(crate) fn start_grace(&mut self, no: CallNo, cx: &Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let is_orphan = self.presence_of(&call.request.key.caller) == Presence::Disconnected;
        let grace = self.options.caller_grace.filter(|_| is_orphan);
        if let Some(call) = self.get(no) {
            call.orphaned_at = grace.map(|grace| cx.now.ms.saturating_add(grace));
        }
    }

    /// It may be time to follow the caller of a call, or to cancel the call as an orphan.
    pub(crate) fn check_orphan(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let is_due = |at: Option<Millis>| at.is_some_and(|at| at <= cx.now.ms);
        let Some(call) = self.calls.get_mut(&no) else { return };
        if is_due(call.follow_at) {
            return self.follow_caller(no, cx);
        }
        if !is_due(call.orphaned_at) {
            return;
        }
        if matches!(call.state, State::Starting | State::Accepting | State::Sending) {
            // Decided once it runs: until then another call may still join it.
            call.orphaned_at = Some(cx.now.ms.saturating_add(RECHECK_AFTER));
            return;
        }
        call.orphaned_at = None;
        // When no call waits for it any more, it gets a new grace: another one may want to join it.
        if !self.joiners.contains_key(&no) || self.is_planted(PlantedBug::OrphanWithJoiner) {
            self.cancel(no, Cause::CallerGone, Some("the caller is gone".to_owned()), cx);
        }
    }

    pub(crate) fn awaits_caller(&self, no: CallNo) -> bool {
        self.calls.get(&no).is_some_and(|call| matches!(call.state, State::AwaitingCaller))
    }
}
