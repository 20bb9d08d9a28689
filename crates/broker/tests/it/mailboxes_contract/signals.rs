//! What is not stored: cancels, live events, and who is there; and what a cancel takes back.

use super::client::delivery;
use super::{Client, Factory, Limits};
use bytes::Bytes;
use toolbus_engine::{Command, Inspect, InspectView, Mailboxes, MessageAt, Outgoing, Peer, Refusal, Rights};

fn cancel(to: &str) -> Command {
    Command::Cancel { to: to.into(), correlation_id: "work".into() }
}

fn event(to: &str, body: &'static str) -> Command {
    Command::Event { to: to.into(), correlation_id: "work".into(), body: Bytes::from_static(body.as_bytes()) }
}

pub fn a_cancel_reaches_the_subscriber_and_nobody_else(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let client = Client::attach(&mailboxes, "client");
    client.submit(cancel("host"));
    let bystander = Client::attach(&mailboxes, "host");
    let other = Client::subscribed(&mailboxes, "other");
    let host = Client::subscribed(&mailboxes, "host");
    host.expect_nothing();
    client.submit(cancel("host"));
    let id = host.expect("a cancel", |outgoing| match outgoing {
        Outgoing::Cancel { correlation_id } => Some(correlation_id.to_string()),
        _ => None,
    });
    assert_eq!(id, "work");
    for quiet in [&client, &bystander, &other, &host] {
        quiet.expect_nothing();
    }
}

fn take_back(to: &str, id: &str) -> Command {
    Command::Cancel { to: to.into(), correlation_id: id.into() }
}

pub fn a_cancel_takes_back_what_its_sender_has_in_the_queue(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    let other = Client::subscribed(&mailboxes, "other");
    for id in ["gone", "stays"] {
        sender.deliver_safely(delivery("host", id, 1));
    }
    sender.deliver_safely(delivery("elsewhere", "gone", 1));
    other.submit(take_back("host", "stays"));
    sender.submit(take_back("host", "gone"));
    let refusal = sender.expect_refusal(Some("gone"));
    assert!(matches!(refusal, Refusal::Cancelled { .. }), "{refusal:?}");
    other.expect_nothing();
    // Who was told of it can rely on it, whatever happens.
    drop((sender, other, mailboxes));
    let mailboxes = factory.open(Limits::default());
    let host = Client::subscribed(&mailboxes, "host");
    host.expect_message("stays", 1);
    host.expect_nothing();
    Client::subscribed(&mailboxes, "elsewhere").expect_message("gone", 1);
}

pub fn a_cancel_before_the_receipt_is_answered_instead_of_it(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let mut commands = vec![Command::Deliver(delivery("host", "m", 1)), take_back("host", "m")];
    mailboxes.submit(sender.conn, &mut commands);
    let refusal = sender.expect_refusal(Some("m"));
    assert!(matches!(refusal, Refusal::Cancelled { .. }), "{refusal:?}");
    Client::subscribed(&mailboxes, "host").expect_nothing();
    sender.expect_nothing();
}

pub fn what_was_cancelled_in_flight_is_pushed_to_nobody_else(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    let host = Client::subscribed(&mailboxes, "host");
    sender.deliver_safely(delivery("host", "m", 1));
    host.expect_message("m", 1);
    sender.submit(take_back("host", "m"));
    host.expect("a cancel", |outgoing| matches!(outgoing, Outgoing::Cancel { .. }).then_some(()));
    sender.expect_nothing();
    host.detach();
    let refusal = sender.expect_refusal(Some("m"));
    assert!(matches!(refusal, Refusal::Cancelled { .. }), "{refusal:?}");
    Client::subscribed(&mailboxes, "host").expect_nothing();
}

pub fn a_live_event_carries_its_senders_name_and_is_not_stored(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let host = Client::attach(&mailboxes, "host");
    host.submit(event("worker", "1"));
    let worker = Client::subscribed(&mailboxes, "worker");
    worker.expect_nothing();
    host.submit(event("worker", "2"));
    let (from, body) = worker.expect("an event", |outgoing| match outgoing {
        Outgoing::Event { from, body, .. } => Some((from.to_string(), body.clone())),
        _ => None,
    });
    assert_eq!((from.as_str(), &body[..]), ("host", &b"2"[..]));
    host.expect_nothing();
    assert_eq!(worker.status().mailboxes.iter().map(|mailbox| mailbox.messages).sum::<u64>(), 0);
}

pub fn an_event_does_not_arrive_after_a_message_that_was_sent_later(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let worker = Client::subscribed(&mailboxes, "worker");
    let host = Client::attach(&mailboxes, "host");
    for n in 0..100 {
        host.submit(event("worker", "1"));
        host.deliver(delivery("worker", &format!("m-{n}"), n));
    }
    for n in 0..100 {
        worker.expect("an event", |outgoing| matches!(outgoing, Outgoing::Event { .. }).then_some(()));
        worker.expect_message(&format!("m-{n}"), 1);
        worker.ack(&format!("m-{n}"));
    }
}

pub fn presence_lists_the_subscribers_of_a_role(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let observer = Client::attach(&mailboxes, "observer");
    let connected = |role: &str| {
        observer.submit(Command::ListConnected { role: role.into() });
        observer.expect("who is there", |outgoing| match outgoing {
            Outgoing::Connected { ids } => Some(ids.iter().map(|id| id.to_string()).collect::<Vec<_>>()),
            _ => None,
        })
    };
    assert_eq!(connected("tester"), Vec::<String>::new());
    let b = Client::subscribed(&mailboxes, "b");
    let a = Client::subscribed(&mailboxes, "a");
    let _unsubscribed = Client::attach(&mailboxes, "c");
    let again = Client::subscribed(&mailboxes, "a");
    assert_eq!(connected("tester"), ["a", "b"]);
    assert_eq!(connected("admin"), Vec::<String>::new());
    // The displaced one leaves; its name is still there.
    a.detach();
    assert_eq!(connected("tester"), ["a", "b"]);
    again.detach();
    b.detach();
    assert_eq!(connected("tester"), Vec::<String>::new());
}

pub fn the_status_counts_what_waits_and_what_is_on_its_way(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 2, ..Limits::default() });
    let observer = Client::attach(&mailboxes, "observer");
    for n in 0..5 {
        observer.deliver_safely(delivery("busy", &format!("m-{n}"), n));
    }
    let busy = Client::subscribed(&mailboxes, "busy");
    busy.expect_message("m-0", 1);
    busy.expect_message("m-1", 1);
    let view = observer.status();
    let row = view.mailboxes.iter().find(|mailbox| &*mailbox.name == "busy").expect("it is listed");
    assert_eq!((row.messages, row.in_flight), (5, 2));
    assert!(row.bytes > 0 && row.oldest_ms.is_some());
    let names: Vec<(&str, bool)> =
        view.connections.iter().map(|connection| (&*connection.agent.name, connection.subscribed)).collect();
    assert_eq!(names, [("observer", false), ("busy", true)]);
    assert_eq!((view.more_mailboxes, view.set_aside), (0, 0));
}

/// A look at two peers, two messages and a mailbox.
fn all_around() -> Inspect {
    let message = |id: &str| MessageAt { to: "busy".into(), id: id.into() };
    Inspect {
        peers: vec!["busy".into(), "away".into()],
        messages: vec![message("m-2"), message("other's")],
        rows_of: Some("busy".into()),
    }
}

fn rows(view: &InspectView) -> Vec<(&str, u32, bool)> {
    view.rows.iter().map(|row| (&*row.id, row.attempt, row.in_flight)).collect()
}

pub fn a_look_shows_who_is_there_and_where_messages_stand(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 2, ..Limits::default() });
    let (sender, other) = (Client::subscribed(&mailboxes, "sender"), Client::attach(&mailboxes, "other"));
    for n in 0..3 {
        let dated = delivery("busy", &format!("m-{n}"), n);
        sender.deliver_safely(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    }
    let dated = delivery("busy", "other's", 1);
    other.deliver_safely(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    let view = sender.inspect(all_around());
    assert_eq!((view.peers, view.messages), (vec![false, false], vec![Some(2), None]));
    let busy = Client::subscribed(&mailboxes, "busy");
    busy.expect_message("m-0", 1);
    busy.expect_message("m-1", 1);
    let view = sender.inspect(all_around());
    assert_eq!((&view.peers[..], &view.messages[..]), (&[true, false][..], &[Some(2), None][..]));
    assert_eq!(rows(&view), [("m-0", 1, true), ("m-1", 1, true), ("m-2", 0, false), ("other's", 0, false)]);
    assert!(!view.more);
    assert!(view.rows.iter().all(|row| row.deadline_ms.is_some_and(|left| left <= 600_000)));
    busy.ack_safely("m-0");
    assert_eq!(sender.inspect(all_around()).messages, [Some(1), None]);
}

pub fn a_look_shows_what_outlived_the_mailboxes(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    for n in 0..3 {
        let dated = delivery("busy", &format!("m-{n}"), n);
        sender.deliver_safely(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    }
    drop((sender, mailboxes));
    let mailboxes = factory.open(Limits::default());
    let view = Client::attach(&mailboxes, "sender").inspect(all_around());
    assert_eq!(view.messages, [Some(2), None]);
    assert_eq!(rows(&view), [("m-0", 0, false), ("m-1", 0, false), ("m-2", 0, false)]);
}

pub fn mailboxes_with_nothing_to_do_are_not_congested(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    assert!(!mailboxes.congested());
    let client = Client::attach(&mailboxes, "client");
    client.deliver_safely(delivery("a", "m", 1));
    assert!(!mailboxes.congested());
    // A peer without a role can be attached as well.
    let peer = Peer { name: "plain".into(), role: None, numbered_receipts: false, rights: Rights::UNRESTRICTED };
    struct Nowhere;
    impl toolbus_engine::Outbox for Nowhere {
        fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
            outgoing.clear();
        }
    }
    let conn = mailboxes.attach(peer, std::sync::Arc::new(Nowhere));
    assert_ne!(conn, client.conn);
    mailboxes.detach(conn);
}
