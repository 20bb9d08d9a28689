//! Settling messages: by acknowledgement, reply, deadline or dead-lettering, and durably.

use super::client::delivery;
use super::{Client, Factory, Limits};
use toolbus_engine::{Command, Delivery, Mailboxes, Outgoing, Refusal};

pub fn an_acknowledged_message_is_not_redelivered(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for (n, id) in ["by-id", "by-tag", "confirmed", "kept"].into_iter().enumerate() {
        sender.deliver_receipted(delivery("recipient", id, n as u64));
    }
    recipient.expect_message("by-id", 1);
    let tag = recipient.expect_message("by-tag", 1).seq;
    recipient.expect_message("confirmed", 1);
    recipient.expect_message("kept", 1);
    recipient.ack("by-id");
    recipient.submit(Command::AckTags { tags: vec![tag] });
    assert_eq!(recipient.ack_confirmed("confirmed"), None);
    recipient.detach();
    let recipient = Client::subscribed(&mailboxes, "recipient");
    recipient.expect_message("kept", 2);
    recipient.expect_nothing();
}

pub fn tags_acknowledge_only_messages_pushed_to_that_connection(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 1, ..Limits::default() });
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("owner", "one", 1));
    sender.deliver_receipted(delivery("owner", "two", 2));
    let owner = Client::subscribed(&mailboxes, "owner");
    let tag = owner.expect_message("one", 1).seq;
    let attacker = Client::subscribed(&mailboxes, "attacker");
    attacker.submit(Command::AckTags { tags: (tag.saturating_sub(10)..tag + 10).chain([0, 1, u64::MAX]).collect() });
    // The second message was not pushed yet, so its tag acknowledges nothing.
    owner.submit(Command::AckTags { tags: vec![tag + 1] });
    attacker.expect_nothing();
    owner.expect_nothing();
    owner.submit(Command::AckTags { tags: vec![tag] });
    owner.expect_message("two", 1);
}

pub fn acknowledging_is_idempotent_and_unknown_ids_are_refused(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    sender.deliver_receipted(delivery("recipient", "m", 1));
    recipient.expect_message("m", 1);
    for _ in 0..3 {
        recipient.ack("m");
        assert_eq!(recipient.ack_confirmed("m"), None);
    }
    recipient.ack("never-here");
    assert!(matches!(recipient.expect_refusal(None), Refusal::UnknownMessage { .. }));
    assert!(matches!(recipient.ack_confirmed("never-here"), Some(Refusal::UnknownMessage { .. })));
}

pub fn an_acknowledgement_matches_the_whole_id(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let sender = Client::attach(&mailboxes, "sender");
    let ids = ["7", "job-7", "job-77", "77"];
    ids.iter().for_each(|id| sender.deliver(delivery("recipient", id, 1)));
    recipient.ack("7");
    ids.iter().for_each(|id| drop(recipient.expect_message(id, 1)));
    recipient.detach();
    let recipient = Client::subscribed(&mailboxes, "recipient");
    ids[1..].iter().for_each(|id| drop(recipient.expect_message(id, 2)));
    recipient.expect_nothing();
}

pub fn a_message_of_another_mailbox_cannot_be_acknowledged(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("owner", "job-7", 1));
    for name in ["attacker", "sender", "owner-2", "own"] {
        let attacker = Client::subscribed(&mailboxes, name);
        for id in ["job-7", "7", "job"] {
            assert!(matches!(attacker.ack_confirmed(id), Some(Refusal::UnknownMessage { .. })), "{name} acked {id}");
        }
    }
    Client::subscribed(&mailboxes, "owner").expect_message("job-7", 1);
}

/// A reply that settles its request.
fn reply(to: &str, id: &str, tag: u64, request: &str) -> Delivery {
    Delivery { ack: Some(tag), correlation_id: Some(request.into()), ..delivery(to, id, 1) }
}

pub fn a_reply_settles_its_request(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let worker = Client::subscribed(&mailboxes, "worker");
    let host = Client::subscribed(&mailboxes, "host");
    worker.deliver(delivery("host", "request", 1));
    let request = host.expect_message("request", 1);
    host.deliver(reply("worker", "reply", request.seq, "request"));
    // The receipt of the request may or may not precede the reply.
    let first = worker.next();
    if matches!(first, Outgoing::Receipt { .. }) {
        worker.expect_message("reply", 1);
    } else {
        assert!(matches!(&first, Outgoing::Message { message, .. } if *message.id == *"reply"), "{first:?}");
    }
    host.expect_receipt("reply");
    host.detach();
    Client::subscribed(&mailboxes, "host").expect_nothing();
}

pub fn a_refused_reply_does_not_settle_its_request(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let worker = Client::attach(&mailboxes, "worker");
    let host = Client::subscribed(&mailboxes, "host");
    worker.deliver_receipted(delivery("host", "first", 1));
    worker.deliver_receipted(delivery("host", "request", 1));
    let (first, request) = (host.expect_message("first", 1), host.expect_message("request", 1));
    host.deliver(Delivery { content: 7, ..reply("worker", "used", first.seq, "first") });
    host.expect_receipt("used");
    host.deliver(reply("worker", "used", request.seq, "request"));
    assert!(matches!(host.expect_refusal(Some("used")), Refusal::IdConflict { .. }));
    host.detach();
    Client::subscribed(&mailboxes, "host").expect_message("request", 2);
}

pub fn an_expired_message_is_removed_and_its_sender_notified(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::subscribed(&mailboxes, "sender");
    sender.deliver(Delivery { deadline_ms: Some(0), ..delivery("recipient", "at-once", 1) });
    assert!(matches!(sender.expect_refusal(Some("at-once")), Refusal::Expired { .. }));
    sender.deliver(Delivery { deadline_ms: Some(50), ..delivery("recipient", "soon", 1) });
    // On a slow disk the message may expire before it is durable, and then it gets no receipt.
    let notice = match sender.next() {
        Outgoing::Receipt { .. } => sender.next(),
        other => other,
    };
    assert!(matches!(notice, Outgoing::Refused { refusal: Refusal::Expired { .. }, .. }), "{notice:?}");
    sender.deliver_receipted(Delivery { deadline_ms: Some(600_000), ..delivery("recipient", "later", 1) });
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let left = recipient.expect("the rest of the deadline", |outgoing| match outgoing {
        Outgoing::Message { message, deadline_ms, .. } if *message.id == *"later" => *deadline_ms,
        _ => None,
    });
    assert!((1..=600_000).contains(&left), "{left} ms are left");
    recipient.expect_nothing();
}

pub fn a_message_pushed_too_often_is_dead_lettered(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { max_attempts: 3, ..Limits::default() });
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("recipient", "poison", 1));
    for attempt in 1..=3 {
        let recipient = Client::subscribed(&mailboxes, "recipient");
        recipient.expect_message("poison", attempt);
        recipient.detach();
    }
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let dead_letters = Client::subscribed(&mailboxes, "recipient#dead");
    let message = dead_letters.expect_message("poison", 1);
    assert_eq!(&*message.from.name, "sender");
    recipient.expect_nothing();
    assert_eq!(dead_letters.ack_confirmed("poison"), None);
}

pub fn an_unreadable_message_is_dead_lettered(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    sender.deliver_receipted(delivery("recipient", "garbled", 1));
    let message = recipient.expect_message("garbled", 1);
    recipient.submit(Command::Unreadable { message });
    assert!(matches!(recipient.expect_refusal(None), Refusal::Unreadable { .. }));
    recipient.detach();
    Client::subscribed(&mailboxes, "recipient").expect_nothing();
    Client::subscribed(&mailboxes, "recipient#dead").expect_message("garbled", 1);
}

/// Detaches the clients and drops the mailboxes, as at shutdown.
fn close<M: Mailboxes>(mailboxes: std::sync::Arc<M>, clients: impl IntoIterator<Item = Client<M>>) {
    clients.into_iter().for_each(Client::detach);
    assert!(std::sync::Arc::into_inner(mailboxes).is_some(), "the mailboxes are not shared");
}

pub fn receipted_messages_survive_a_restart(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    for n in 0..50 {
        sender.deliver_receipted(delivery("recipient", &format!("m-{n}"), n));
    }
    close(mailboxes, [sender]);

    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for n in 0..50 {
        let message = recipient.expect_message(&format!("m-{n}"), 1);
        assert_eq!(&*message.from.name, "sender");
    }
    // Deduplication survives, too.
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("recipient", "m-7", 7));
    sender.deliver(delivery("recipient", "m-7", 8));
    assert!(matches!(sender.expect_refusal(Some("m-7")), Refusal::IdConflict { .. }));
    recipient.expect_nothing();
}

pub fn confirmed_acknowledgements_survive_a_restart(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for n in 0..10 {
        sender.deliver_receipted(delivery("recipient", &format!("m-{n}"), n));
        recipient.expect_message(&format!("m-{n}"), 1);
        if n % 2 == 0 {
            assert_eq!(recipient.ack_confirmed(&format!("m-{n}")), None);
        }
    }
    close(mailboxes, [sender, recipient]);

    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for n in [1, 3, 5, 7, 9] {
        recipient.expect_message(&format!("m-{n}"), 2);
    }
    recipient.expect_nothing();
    assert_eq!(recipient.ack_confirmed("m-0"), None, "the id is known as settled");
}
