//! When a call leaves a member of a pool that is away, without I/O.
//!
//! A call that the member never received is withdrawn and moves at once. One that it received may have begun: only the
//! member's journal knows, so the member gets time to come back and to answer. After that the call is withdrawn, so that
//! the member is not given it again, and moves only if it may run twice.

use super::call_state::NoReply;

/// The state of a call at a member.
#[derive(Debug, Clone)]
pub struct Failover {
    /// How long a member may be away, in milliseconds.
    grace: u64,
    /// The member keeps state for the session, which is lost with a move.
    keeps_state: bool,
    fails_fast: bool,
    absence: Option<Absence>,
}

#[derive(Debug, Clone, Copy)]
struct Absence {
    since: u64,
    /// The member may have received the call.
    is_touched: bool,
    is_fenced: bool,
}

/// The pool as far as the decision needs it.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// When the member disconnected; `None` while it is connected.
    pub away_since: Option<u64>,
    /// The member announced that it stops: its sessions have ended.
    pub is_draining: bool,
    /// Another member can run the call now.
    pub has_others: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until the situation changes.
    Wait,
    /// Nothing until that time, in milliseconds since the Unix epoch.
    Until(u64),
    /// Withdraw the call if the member never received it.
    WithdrawUntouched,
    /// Withdraw the call, so that the member does not get it again.
    Fence,
}

impl Failover {
    pub fn new(grace: u64, keeps_state: bool, fails_fast: bool) -> Self {
        Self { grace, keeps_state, fails_fast, absence: None }
    }

    pub fn next(&mut self, situation: Situation, now: u64) -> Step {
        let Some(since) = situation.away_since else {
            self.absence = None;
            return Step::Wait;
        };
        // A host that is not listed any more has no time of its departure.
        let since = if since == 0 { now } else { since };
        let absence = *self.absence.get_or_insert(Absence { since, is_touched: false, is_fenced: false });
        let lost_at = absence.since.saturating_add(self.grace);
        let is_lost = situation.is_draining || now >= lost_at;
        match situation.has_others {
            _ if absence.is_fenced => Step::Wait,
            // As with a single host, the call waits in the mailbox.
            false if absence.is_touched || !self.fails_fast => Step::Wait,
            true if absence.is_touched && now >= lost_at => Step::Fence,
            true if absence.is_touched => Step::Until(lost_at),
            true if self.keeps_state && !is_lost => Step::Until(lost_at),
            _ => Step::WithdrawUntouched,
        }
    }

    /// The member may have received the call.
    pub fn touched(&mut self) {
        self.absence.iter_mut().for_each(|absence| absence.is_touched = true);
    }

    /// The call is being withdrawn, whether or not the member received it.
    pub fn fenced(&mut self) {
        self.absence.iter_mut().for_each(|absence| absence.is_fenced = true);
    }
}

/// Whether a call without a reply may run at another member.
pub fn may_move(no_reply: NoReply, is_replay_safe: bool) -> bool {
    match no_reply {
        NoReply::NotRun { .. } => true,
        NoReply::WithdrawnTooLate => is_replay_safe,
        NoReply::HostAway { .. } | NoReply::TimedOut | NoReply::Failed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTED: Situation = Situation { away_since: None, is_draining: false, has_others: true };
    const AWAY: Situation = Situation { away_since: Some(100), ..CONNECTED };
    const ALL_AWAY: Situation = Situation { has_others: false, ..AWAY };

    fn call() -> Failover {
        Failover::new(50, false, false)
    }

    #[test]
    fn a_call_moves_at_once_unless_the_member_received_it() {
        let mut call = call();
        assert_eq!(call.next(CONNECTED, 90), Step::Wait);
        assert_eq!(call.next(AWAY, 101), Step::WithdrawUntouched);
        call.touched();
        assert_eq!(call.next(AWAY, 102), Step::Until(150));
        assert_eq!(call.next(Situation { away_since: Some(103), ..AWAY }, 149), Step::Until(150));
        assert_eq!(call.next(AWAY, 150), Step::Fence);
        call.fenced();
        assert_eq!(call.next(AWAY, 151), Step::Wait);
    }

    #[test]
    fn a_member_that_comes_back_answers_itself() {
        let mut call = call();
        call.next(AWAY, 101);
        call.touched();
        assert_eq!(call.next(CONNECTED, 120), Step::Wait);
        // The next absence is another one.
        assert_eq!(call.next(Situation { away_since: Some(200), ..AWAY }, 201), Step::WithdrawUntouched);
        call.touched();
        assert_eq!(call.next(Situation { away_since: Some(200), ..AWAY }, 202), Step::Until(250));
    }

    #[test]
    fn a_call_waits_while_all_members_are_away() {
        let mut call = call();
        assert_eq!(call.next(ALL_AWAY, 101), Step::Wait);
        assert_eq!(call.next(ALL_AWAY, 999), Step::Wait);
        assert_eq!(call.next(AWAY, 1000), Step::WithdrawUntouched);
        call.touched();
        assert_eq!(call.next(ALL_AWAY, 1001), Step::Wait);
        let mut fail_fast = Failover::new(50, false, true);
        assert_eq!(fail_fast.next(ALL_AWAY, 101), Step::WithdrawUntouched);
        fail_fast.touched();
        assert_eq!(fail_fast.next(ALL_AWAY, 999), Step::Wait);
    }

    #[test]
    fn a_session_waits_for_the_member_with_its_state_unless_that_stopped() {
        let mut call = Failover::new(50, true, false);
        assert_eq!(call.next(AWAY, 101), Step::Until(150));
        assert_eq!(call.next(AWAY, 150), Step::WithdrawUntouched);
        let mut call = Failover::new(50, true, false);
        assert_eq!(call.next(Situation { is_draining: true, ..AWAY }, 101), Step::WithdrawUntouched);
        call.touched();
        assert_eq!(call.next(Situation { is_draining: true, ..AWAY }, 102), Step::Until(150), "it may have begun");
    }

    #[test]
    fn a_host_that_is_not_listed_gets_the_grace_from_now_on() {
        let mut call = call();
        let gone = Situation { away_since: Some(0), ..AWAY };
        assert_eq!(call.next(gone, 1000), Step::WithdrawUntouched);
        call.touched();
        assert_eq!(call.next(gone, 1001), Step::Until(1050));
    }

    #[test]
    fn only_a_call_that_was_not_run_or_may_run_twice_moves() {
        let not_run = NoReply::NotRun { since: 1 };
        assert!(may_move(not_run, false) && may_move(NoReply::WithdrawnTooLate, true));
        assert!(!may_move(NoReply::WithdrawnTooLate, false));
        for ended in [NoReply::TimedOut, NoReply::Failed, NoReply::HostAway { since: 1 }] {
            assert!(!may_move(ended, true));
        }
    }
}
