//! Tests of the session that need no connection.

use crate::BrokerError;
use crate::deliver::NewDelivery;
use crate::session::Session;
use crate::terms::Terms;
use crate::withdraw::PendingWithdrawal;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{
    AgentRef, Body, BrokerFrame, CancelOutcome, CancelResult, ClientFrame, ErrorCode, InboxMessage, Refusal,
};

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

/// Otherwise it would end every further connection.
#[test]
fn a_request_that_is_larger_than_the_next_broker_accepts_fails() {
    let mut session = subscribed_before();
    let mut end = session.open_request("host".into(), &"call".into(), false).expect("an open session");
    let body = Body::of(&"x".repeat(2_000)).expect("a text");
    let message = InboxMessage { id: "call".into(), ..InboxMessage::new(AgentRef::new("me"), "mcp_request", body) };
    let envelope = message.seal();
    let new =
        NewDelivery { to: "host", message: &message, envelope, limit: None, answers: None, receipt: None, slot: None };
    session.start_delivery(new).expect("an open session");
    session.connected(Terms { version: 2, max_frame_bytes: Some(1_000), ..Terms::default() });
    assert!(matches!(&frames(&mut session)[..], [ClientFrame::Subscribe]), "it is not sent");
    let ended = end.try_recv().ok().and_then(|end| end.outcome?.err()?.code());
    assert_eq!(ended, Some(ErrorCode::FrameTooLarge));
}

/// The broker has not accepted it, so it can't have reached its recipient.
#[test]
fn a_delivery_that_a_stopping_broker_refused_has_no_age_unless_it_was_sent_before() {
    let mut session = Session::new(AgentRef::new("me"), Instant::now());
    let message = InboxMessage::new(AgentRef::new("me"), "mcp_request", Body::null());
    let (id, envelope) = (message.id.clone(), message.seal());
    let new =
        NewDelivery { to: "host", message: &message, envelope, limit: None, answers: None, receipt: None, slot: None };
    session.start_delivery(new).expect("an open session");
    let mut next_age = |is_refused: bool| {
        session.connected(Terms { version: 2, ..Terms::default() });
        let sent = frames(&mut session);
        if is_refused {
            let (code, id) = (Some(ErrorCode::ShuttingDown), Some(id.clone().into_inner()));
            session.receive(BrokerFrame::Error(Refusal { reason: "stopping".into(), id, code }));
        }
        session.disconnected();
        match &sent[..] {
            [ClientFrame::Deliver(deliver)] => deliver.age_ms.is_some(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([true, true, false].map(&mut next_age), [false; 3], "refused on its first two connections");
    assert_eq!([true, true].map(next_age), [true; 2], "it may have arrived on the third one");
}
