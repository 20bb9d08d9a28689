//! What only mailboxes in several partitions can get wrong.

use super::client::delivery;
use super::{Client, Factory, InPartitions, Limits, PARTITIONS};
use toolbus_cluster::{Partition, Partitions};
use toolbus_engine::{Command, Delivery, Outgoing, Purpose, Refusal, Rights};

fn partition_of(name: &str) -> Partition {
    Partitions::new(PARTITIONS).expect("a number of partitions").of(name)
}

/// Two names in different partitions.
fn two_names() -> (&'static str, &'static str) {
    let (host, worker) = ("host", "worker-2");
    assert_ne!(partition_of(host), partition_of(worker));
    (host, worker)
}

#[test]
fn receipts_are_numbered_across_partitions() {
    let mailboxes = InPartitions::new().open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    for number in 1..=30 {
        let to = format!("recipient-{}", number * 7 % 11);
        assert_eq!(sender.deliver_receipted(delivery(&to, &number.to_string(), number)), number);
    }
}

#[test]
fn a_reply_stays_in_the_partition_of_its_request_and_is_acknowledged_by_id() {
    let mailboxes = InPartitions::new().open(Limits::default());
    let (host_name, worker_name) = two_names();
    let worker = Client::subscribed(&mailboxes, worker_name);
    let host = Client::subscribed(&mailboxes, host_name);
    worker.deliver_receipted(delivery(host_name, "request", 1));
    let request = host.expect_message("request", 1);
    assert_eq!(Partition::of_seq(request.seq), partition_of(host_name));
    host.ack("request");
    let reply = Delivery { purpose: Purpose::Reply, ..delivery(worker_name, "reply", 2) };
    host.deliver(Delivery { correlation_id: Some("request".into()), ..reply });
    let reply = worker.expect_message("reply", 1);
    assert_eq!(Partition::of_seq(reply.seq), partition_of(host_name));
    assert_eq!(worker.ack_confirmed("reply"), None);
    worker.detach();
    Client::subscribed(&mailboxes, worker_name).expect_nothing();
}

#[test]
fn a_request_to_all_partitions_is_refused_once() {
    let mailboxes = InPartitions::new().open(Limits::default());
    let worker = Client::attach_with(&mailboxes, "worker", Rights::WORKER);
    for _ in 0..2 {
        worker.submit(Command::Status { request_id: "s".into() });
        assert_eq!(worker.expect_refusal(Some("s")), Refusal::OperatorOnly);
        assert_eq!(worker.take_queued().len(), 0);
    }
}

#[test]
fn a_follow_reports_messages_of_every_partition() {
    let mailboxes = InPartitions::new().open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let names = ["a", "b", "c", "d", "e", "f"];
    let at = |name: &&str| toolbus_engine::MessageAt { to: (*name).into(), id: "m".into() };
    for name in names {
        sender.deliver_receipted(delivery(name, "m", 1));
    }
    let follow = toolbus_engine::Follow { peers: vec!["c".into()], messages: names.iter().map(at).collect() };
    sender.submit(Command::Follow { request_id: "f".into(), follow: Box::new(follow) });
    let view = || {
        sender.expect("a follow", |outgoing| match outgoing {
            Outgoing::Followed { view, .. } => Some((**view).clone()),
            _ => None,
        })
    };
    assert_eq!(view().uncollected, [true; 6]);
    let recipient = Client::subscribed(&mailboxes, "c");
    recipient.expect_message("m", 1);
    assert_eq!(view().peers, [true]);
    recipient.ack("m");
    assert_eq!(view().uncollected, [true, true, false, true, true, true]);
}
