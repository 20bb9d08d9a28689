//! Tests of the session that need no connection.

use crate::error::BrokerError;
use crate::session::Session;
use crate::terms::Terms;
use crate::withdraw::PendingWithdrawal;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{AgentRef, BrokerFrame, CancelOutcome, CancelResult, ClientFrame, ErrorCode};

fn frames(session: &mut Session) -> Vec<ClientFrame> {
    let mut frames = Vec::new();
    session.take_frames(true, &mut frames);
    frames
}

/// A session that lost a connection on which it had subscribed.
fn subscribed_before() -> Session {
    let mut session = Session::new(AgentRef::new("me"), Instant::now());
    session.connected(Terms::default());
    session.wants_subscription = true;
    session.disconnected();
    session
}

#[test]
fn a_session_that_is_closed_around_a_reconnect_does_not_subscribe() {
    let mut closed_after = subscribed_before();
    closed_after.connected(Terms::default());
    closed_after.cancel("host".into(), "call".into());
    closed_after.close(BrokerError::Closed);
    let sent = frames(&mut closed_after);
    assert!(matches!(&sent[..], [ClientFrame::Cancel { .. }]), "other frames are sent: {sent:?}");

    let mut closed_before = subscribed_before();
    closed_before.close(BrokerError::Closed);
    closed_before.connected(Terms::default());
    assert!(frames(&mut closed_before).is_empty());

    let mut open = subscribed_before();
    open.connected(Terms::default());
    assert!(matches!(&frames(&mut open)[..], [ClientFrame::Subscribe]));
}

/// The refusal that ended the request was lost with its connection.
#[test]
fn a_confirmed_withdrawal_ends_the_request_that_waits_for_a_reply() {
    for (outcome, code) in [(CancelOutcome::Withdrawn, Some(ErrorCode::Cancelled)), (CancelOutcome::Running, None)] {
        let mut session = subscribed_before();
        let mut end = session.open_request("host".into(), &"call".into(), false).expect("an open session");
        let withdrawal = PendingWithdrawal { to: "host".into(), id: "call".into(), sender: oneshot::channel().0 };
        session.withdraw("w".into(), withdrawal).expect("an open session");
        session.connected(Terms { version: 2, ..Terms::default() });
        let (request_id, correlation_id) = ("w".into(), "call".into());
        session.receive(BrokerFrame::CancelResult(CancelResult { request_id, correlation_id, outcome }));
        let ended = end.try_recv().ok().and_then(|end| end.outcome?.err()?.code());
        assert_eq!(ended, code);
    }
}
