//! Withdrawal of a sent message. The broker answers what became of the message.

use crate::client::BrokerClient;
use crate::session::Session;
use crate::shared::Shared;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use toolbus_protocol::{CancelOutcome, CancelResult, ClientFrame, ErrorCode, MsgId};

/// At least this many ids of messages that lost their connection before the receipt are remembered.
const MAX_IN_DOUBT: usize = 8192;

impl BrokerClient {
    /// Cancels the message that this agent sent to `to` under that id, and returns what became of it.
    /// [`CancelOutcome::Withdrawn`] means that `to` never receives it. After a lost connection the broker is asked again;
    /// fails if there is no answer within `limit`, for example from an older broker, which does not answer.
    pub async fn withdraw(&self, to: &str, id: &MsgId, limit: Duration) -> BrokerResult<CancelOutcome> {
        self.check_supports("answers to cancels")?;
        let request_id = MsgId::new().into_inner();
        let _guard = WithdrawalGuard { shared: &self.shared, request_id: request_id.clone() };
        let (sender, answer) = oneshot::channel();
        let withdrawal = PendingWithdrawal { to: to.into(), id: id.clone().into_inner(), sender };
        self.shared.change(|session| session.withdraw(request_id, withdrawal))?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(self.shared.lock().closed.clone().unwrap_or(BrokerError::Closed)),
            Err(_) => Err(BrokerError::Timeout(limit)),
        }
    }
}

impl Session {
    pub fn withdraw(&mut self, request_id: ByteString, withdrawal: PendingWithdrawal) -> BrokerResult<()> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        self.send(withdrawal.frame(&request_id));
        self.withdrawals.pending.insert(request_id, withdrawal);
        Ok(())
    }

    /// A withdrawn request has no reply, and the refusal that ended it may have been lost with a connection.
    pub fn withdrawal_answered(&mut self, result: CancelResult) {
        if result.outcome == CancelOutcome::Withdrawn
            && let Some(request) = self.requests.remove(&result.correlation_id)
        {
            let (code, id) = (Some(ErrorCode::Cancelled), Some(MsgId::from(result.correlation_id.clone())));
            request.end(Err(BrokerError::Rejected { code, reason: "the message was withdrawn".to_owned(), id }));
        }
        self.withdrawals.answered(result);
    }
}

/// Withdrawals without an answer. They outlive connections.
#[derive(Default)]
pub struct Withdrawals {
    pending: BTreeMap<ByteString, PendingWithdrawal>,
    /// Messages whose connection was lost before their receipt, in two generations: a broker that crashed then may have
    /// pushed them, without a record, before they were delivered to it again.
    in_doubt: [HashSet<ByteString>; 2],
}

pub struct PendingWithdrawal {
    pub to: ByteString,
    pub id: ByteString,
    pub sender: oneshot::Sender<CancelOutcome>,
}

impl PendingWithdrawal {
    fn frame(&self, request_id: &ByteString) -> ClientFrame {
        let (to, correlation_id) = (self.to.clone(), self.id.clone());
        ClientFrame::Cancel { to, correlation_id, request_id: Some(request_id.clone()) }
    }
}

impl Withdrawals {
    /// On a new connection: returns frames that ask again.
    pub fn ask_again(&self) -> impl Iterator<Item = ClientFrame> {
        self.pending.iter().map(|(request_id, withdrawal)| withdrawal.frame(request_id))
    }

    /// On a lost connection, with the ids of all messages without a receipt.
    pub fn connection_lost<'a>(&mut self, unreceipted: impl Iterator<Item = &'a ByteString>) {
        let [younger, older] = &mut self.in_doubt;
        if younger.len() >= MAX_IN_DOUBT {
            *older = std::mem::take(younger);
        }
        younger.extend(unreceipted.cloned());
    }

    pub fn answered(&mut self, result: CancelResult) {
        let Some(withdrawal) = self.pending.remove(&result.request_id) else { return };
        let in_doubt = self.in_doubt.iter().any(|ids| ids.contains(&withdrawal.id));
        let outcome = match result.outcome {
            CancelOutcome::Withdrawn if in_doubt => CancelOutcome::Running,
            outcome => outcome,
        };
        withdrawal.sender.send(outcome).ok();
    }

    /// Ends all withdrawals without an answer.
    pub fn close(&mut self) {
        self.pending.clear();
    }
}

/// Removes a withdrawal when its caller stops waiting.
struct WithdrawalGuard<'a> {
    shared: &'a Shared,
    request_id: ByteString,
}

impl Drop for WithdrawalGuard<'_> {
    fn drop(&mut self) {
        self.shared.lock().withdrawals.pending.remove(&self.request_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(withdrawals: &mut Withdrawals, id: &str) -> CancelOutcome {
        let (sender, mut answer) = oneshot::channel();
        withdrawals.pending.insert("r".into(), PendingWithdrawal { to: "host".into(), id: id.into(), sender });
        let (request_id, correlation_id) = ("r".into(), id.into());
        withdrawals.answered(CancelResult { request_id, correlation_id, outcome: CancelOutcome::Withdrawn });
        answer.try_recv().expect("an answer")
    }

    #[test]
    fn a_message_that_lost_its_connection_before_the_receipt_may_have_been_pushed() {
        let mut withdrawals = Withdrawals::default();
        withdrawals.connection_lost([ByteString::from("doubtful")].iter());
        assert_eq!(answer(&mut withdrawals, "doubtful"), CancelOutcome::Running);
        assert_eq!(answer(&mut withdrawals, "other"), CancelOutcome::Withdrawn);
        let many: Vec<ByteString> = (0..MAX_IN_DOUBT).map(|n| n.to_string().into()).collect();
        withdrawals.connection_lost(many.iter());
        assert_eq!(answer(&mut withdrawals, "doubtful"), CancelOutcome::Running);
        (0..2).for_each(|_| withdrawals.connection_lost(many.iter()));
        assert!(withdrawals.in_doubt.iter().map(HashSet::len).sum::<usize>() <= 2 * MAX_IN_DOUBT + 1, "bounded");
    }
}
