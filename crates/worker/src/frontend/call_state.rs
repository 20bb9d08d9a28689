//! What a worker decides about one call to a host, without I/O: whether it is sent, withdrawn, cancelled or left to go on,
//! and what it means for the client if there is no reply.

use super::planted::PlantedBug;
use toolbus_client::BrokerError;
use toolbus_protocol::ErrorCode;

/// The state of a call as far as these decisions need it.
#[derive(Debug, Clone, Copy)]
pub struct CallState {
    /// The call is rejected while its host is away, instead of being queued.
    pub fails_fast: bool,
    /// When the call was started, in milliseconds since the Unix epoch.
    began: u64,
    /// A withdrawal was sent and not confirmed.
    is_withdrawn: bool,
    planted: Option<PlantedBug>,
}

/// What a call without a reply means for its client. Times are those of the host's disconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReply {
    /// The host is away, and the call certainly was not run and never will be.
    NotRun {
        /// Since when the host is away.
        since: u64,
    },
    /// The call was being withdrawn, and may have been started before.
    WithdrawnTooLate,
    /// The deadline passed while the host was away.
    HostAway {
        /// Since when the host is away.
        since: u64,
    },
    /// The deadline passed.
    TimedOut,
    /// The bus rejected or lost the call.
    Failed,
}

/// What becomes of a call that is dropped before its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It is cancelled at its host.
    Cancel,
    /// It goes on.
    Detach,
}

impl CallState {
    /// A call that is about to be sent to a host that is away since then, or connected. Fails if it must not be sent.
    pub fn start(fails_fast: bool, away_since: Option<u64>, now: u64) -> Result<Self, NoReply> {
        match away_since.filter(|_| fails_fast) {
            Some(since) => Err(NoReply::NotRun { since }),
            None => Ok(Self::started(fails_fast, now)),
        }
    }

    /// A call that was sent to another host of its pool.
    pub fn started(fails_fast: bool, now: u64) -> Self {
        Self { fails_fast, began: now, is_withdrawn: false, planted: None }
    }

    /// Plants a defect.
    #[cfg(feature = "planted")]
    pub fn with_planted(self, planted: Option<PlantedBug>) -> Self {
        Self { planted, ..self }
    }

    /// Whether to withdraw a call whose host disconnected. A delivered one may have started, so its reply is awaited.
    pub fn withdraws(&self, is_untouched: bool) -> bool {
        is_untouched || self.is_planted(PlantedBug::DeliveredWithdrawn)
    }

    /// The broker answered a withdrawal, or did not. Only a confirmed one is durable: after a crash the broker could deliver
    /// the call after all, and it may have delivered it before the call was sent again.
    pub fn withdrawal_ended(&mut self, is_confirmed: bool, away_since: Option<u64>) -> Option<NoReply> {
        self.is_withdrawn = !is_confirmed;
        is_confirmed.then_some(NoReply::NotRun { since: away_since.unwrap_or_default() })
    }

    /// The host replied that the call was cancelled. `None` if the client cancelled it and expects no response.
    pub fn host_cancelled(&self) -> Option<NoReply> {
        self.is_withdrawn.then_some(NoReply::WithdrawnTooLate)
    }

    /// The bus reported that there is no reply.
    pub fn failed(&self, error: &BrokerError, away_since: Option<u64>) -> NoReply {
        match (error, error.code()) {
            (_, Some(ErrorCode::Cancelled)) if self.is_planted(PlantedBug::UnconfirmedWithdrawal) => {
                NoReply::NotRun { since: 0 }
            }
            (_, Some(ErrorCode::Cancelled)) if self.is_withdrawn => NoReply::WithdrawnTooLate,
            // A host that disconnected after the start of the call may have run it.
            (BrokerError::Timeout(_), _) | (_, Some(ErrorCode::Expired)) => {
                match away_since.filter(|since| *since <= self.began) {
                    Some(since) => NoReply::HostAway { since },
                    None => NoReply::TimedOut,
                }
            }
            _ => NoReply::Failed,
        }
    }

    /// A worker that is stopped is no cancellation: the call may have had its effect, and the same call from the next
    /// worker is to join it instead of running again.
    pub fn leave(&self, worker_stops: bool) -> Leave {
        match worker_stops && !self.is_planted(PlantedBug::StopCancels) {
            true => Leave::Detach,
            false => Leave::Cancel,
        }
    }

    fn is_planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rejected(code: ErrorCode) -> BrokerError {
        BrokerError::Rejected { code: Some(code), reason: "no".to_owned(), id: None }
    }

    fn call() -> CallState {
        CallState::start(true, None, 100).expect("the host is connected")
    }

    #[test]
    fn only_a_fail_fast_call_is_rejected_while_its_host_is_away() {
        assert_eq!(CallState::start(true, Some(7), 100).err(), Some(NoReply::NotRun { since: 7 }));
        assert!(CallState::start(false, Some(7), 100).is_ok());
    }

    #[test]
    fn only_a_confirmed_withdrawal_says_that_the_call_was_not_run() {
        let mut call = call();
        assert!(call.withdraws(true) && !call.withdraws(false));
        assert_eq!(call.withdrawal_ended(false, Some(7)), None);
        assert_eq!(call.failed(&rejected(ErrorCode::Cancelled), Some(7)), NoReply::WithdrawnTooLate);
        assert_eq!(call.host_cancelled(), Some(NoReply::WithdrawnTooLate));
        assert_eq!(call.withdrawal_ended(true, Some(7)), Some(NoReply::NotRun { since: 7 }));
    }

    #[test]
    fn a_timeout_names_the_host_only_if_it_was_away_all_along() {
        for error in [BrokerError::Timeout(Duration::ZERO), rejected(ErrorCode::Expired)] {
            assert_eq!(call().failed(&error, Some(100)), NoReply::HostAway { since: 100 });
            assert_eq!(call().failed(&error, Some(101)), NoReply::TimedOut);
            assert_eq!(call().failed(&error, None), NoReply::TimedOut);
        }
        assert_eq!(call().failed(&rejected(ErrorCode::MailboxFull), Some(100)), NoReply::Failed);
    }

    #[test]
    fn a_dropped_call_is_cancelled_unless_the_worker_stops() {
        assert_eq!((call().leave(false), call().leave(true)), (Leave::Cancel, Leave::Detach));
    }
}
