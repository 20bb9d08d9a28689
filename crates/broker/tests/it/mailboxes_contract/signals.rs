//! Cancels, live events, presence, status, queue inspection and follows; and messages withdrawn by a cancel.

use super::client::delivery;
use super::{Client, Factory, Limits};
use bytes::Bytes;
use toolbus_engine::{Command, Follow, Inspect, InspectView, Mailboxes, MessageAt, Outgoing, Peer, Refusal, Rights};

fn cancel(to: &str) -> Command {
    Command::Cancel { to: to.into(), correlation_id: "work".into(), request_id: None }
}

fn event(to: &str, body: &'static str) -> Command {
    let body = Bytes::from_static(body.as_bytes());
    Command::Event { to: to.into(), correlation_id: "work".into(), body, batch: false }
}

pub fn a_cancel_reaches_only_the_subscriber(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let client = Client::attach(&mailboxes, "client");
    client.submit(cancel("host"));
    let bystander = Client::attach(&mailboxes, "host");
    let other = Client::subscribed(&mailboxes, "other");
    let host = Client::subscribed(&mailboxes, "host");
    host.expect_nothing();
    client.submit(cancel("host"));
    let id = host.expect("a cancel", |outgoing| match outgoing {
        Outgoing::Cancel { correlation_id, .. } => Some(correlation_id.to_string()),
        _ => None,
    });
    assert_eq!(id, "work");
    for quiet in [&client, &bystander, &other, &host] {
        quiet.expect_nothing();
    }
}

fn withdraw(to: &str, id: &str) -> Command {
    Command::Cancel { to: to.into(), correlation_id: id.into(), request_id: None }
}

pub fn a_cancel_withdraws_a_queued_message_of_its_sender(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    let other = Client::subscribed(&mailboxes, "other");
    for id in ["gone", "stays"] {
        sender.deliver_receipted(delivery("host", id, 1));
    }
    sender.deliver_receipted(delivery("elsewhere", "gone", 1));
    other.submit(withdraw("host", "stays"));
    sender.submit(withdraw("host", "gone"));
    let refusal = sender.expect_refusal(Some("gone"));
    assert!(matches!(refusal, Refusal::Cancelled { .. }), "{refusal:?}");
    other.expect_nothing();
    // The withdrawal that was reported must be durable.
    drop((sender, other, mailboxes));
    let mailboxes = factory.open(Limits::default());
    let host = Client::subscribed(&mailboxes, "host");
    host.expect_message("stays", 1);
    host.expect_nothing();
    Client::subscribed(&mailboxes, "elsewhere").expect_message("gone", 1);
}

pub fn a_cancel_before_the_receipt_replaces_it(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let mut commands = vec![Command::Deliver(delivery("host", "m", 1)), withdraw("host", "m")];
    mailboxes.submit(sender.conn, &mut commands);
    let refusal = sender.expect_refusal(Some("m"));
    assert!(matches!(refusal, Refusal::Cancelled { .. }), "{refusal:?}");
    Client::subscribed(&mailboxes, "host").expect_nothing();
    sender.expect_nothing();
}

pub fn a_message_cancelled_in_flight_is_not_redelivered(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    let host = Client::subscribed(&mailboxes, "host");
    sender.deliver_receipted(delivery("host", "m", 1));
    host.expect_message("m", 1);
    sender.submit(withdraw("host", "m"));
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

pub fn an_event_is_not_overtaken_by_a_later_message(factory: &impl Factory) {
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
        observer.expect("the list of subscribers", |outgoing| match outgoing {
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
    // The displaced connection ends; the name is still listed.
    a.detach();
    assert_eq!(connected("tester"), ["a", "b"]);
    again.detach();
    b.detach();
    assert_eq!(connected("tester"), Vec::<String>::new());
}

pub fn the_status_counts_queued_and_in_flight_messages(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 2, ..Limits::default() });
    let observer = Client::attach(&mailboxes, "observer");
    for n in 0..5 {
        observer.deliver_receipted(delivery("busy", &format!("m-{n}"), n));
    }
    let busy = Client::subscribed(&mailboxes, "busy");
    busy.expect_message("m-0", 1);
    busy.expect_message("m-1", 1);
    let view = observer.status();
    let row = view.mailboxes.iter().find(|mailbox| &*mailbox.name == "busy").expect("the mailbox is listed");
    assert_eq!((row.messages, row.in_flight), (5, 2));
    assert!(row.bytes > 0 && row.oldest_ms.is_some());
    let names: Vec<(&str, bool)> =
        view.connections.iter().map(|connection| (&*connection.agent.name, connection.subscribed)).collect();
    assert_eq!(names, [("observer", false), ("busy", true)]);
    assert_eq!((view.more_mailboxes, view.set_aside), (0, 0));
}

/// Inspects two peers, two messages and a mailbox.
fn inspect_all() -> Inspect {
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

pub fn inspect_shows_connected_peers_and_queue_positions(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 2, ..Limits::default() });
    let (sender, other) = (Client::subscribed(&mailboxes, "sender"), Client::attach(&mailboxes, "other"));
    for n in 0..3 {
        let dated = delivery("busy", &format!("m-{n}"), n);
        sender.deliver_receipted(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    }
    let dated = delivery("busy", "other's", 1);
    other.deliver_receipted(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    let view = sender.inspect(inspect_all());
    assert_eq!((view.peers, view.messages), (vec![false, false], vec![Some(2), None]));
    let busy = Client::subscribed(&mailboxes, "busy");
    busy.expect_message("m-0", 1);
    busy.expect_message("m-1", 1);
    let view = sender.inspect(inspect_all());
    assert_eq!((&view.peers[..], &view.messages[..]), (&[true, false][..], &[Some(2), None][..]));
    assert_eq!(rows(&view), [("m-0", 1, true), ("m-1", 1, true), ("m-2", 0, false), ("other's", 0, false)]);
    assert!(!view.more);
    assert!(view.rows.iter().all(|row| row.deadline_ms.is_some_and(|left| left <= 600_000)));
    busy.ack_confirmed("m-0");
    assert_eq!(sender.inspect(inspect_all()).messages, [Some(1), None]);
}

pub fn followers_are_notified_before_attach_and_detach_return(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let follower = Client::attach(&mailboxes, "follower");
    let follow = Box::new(Follow { peers: vec!["other".into()], messages: vec![] });
    follower.submit(Command::Follow { request_id: "f".into(), follow });
    let reports = || -> Vec<bool> {
        let report = |frame: Outgoing| match frame {
            Outgoing::Followed { view, .. } => view.peers[0],
            other => panic!("{other:?}"),
        };
        follower.take_queued().into_iter().map(report).collect()
    };
    assert_eq!(reports(), [false]);
    let other = Client::attach(&mailboxes, "other");
    assert_eq!(reports(), [true]);
    other.detach();
    assert_eq!(reports(), [false]);
}

pub fn inspect_shows_messages_after_a_restart(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    for n in 0..3 {
        let dated = delivery("busy", &format!("m-{n}"), n);
        sender.deliver_receipted(toolbus_engine::Delivery { deadline_ms: Some(600_000), ..dated });
    }
    drop((sender, mailboxes));
    let mailboxes = factory.open(Limits::default());
    let view = Client::attach(&mailboxes, "sender").inspect(inspect_all());
    assert_eq!(view.messages, [Some(2), None]);
    assert_eq!(rows(&view), [("m-0", 0, false), ("m-1", 0, false), ("m-2", 0, false)]);
}

pub fn idle_mailboxes_are_not_congested(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    assert!(!mailboxes.congested());
    let client = Client::attach(&mailboxes, "client");
    client.deliver_receipted(delivery("a", "m", 1));
    assert!(!mailboxes.congested());
    // A peer without a role can be attached as well.
    let peer = Peer {
        name: "plain".into(),
        role: None,
        numbered_receipts: false,
        rights: Rights::UNRESTRICTED,
        incarnation: 0,
    };
    struct Discard;
    impl toolbus_engine::Outbox for Discard {
        fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
            outgoing.clear();
        }
    }
    let conn = mailboxes.attach(peer, std::sync::Arc::new(Discard));
    assert_ne!(conn, client.conn);
    mailboxes.detach(conn);
}
