//! Pushing messages to a subscriber: in order, within its window, and again if they are not acknowledged.

use super::client::{delivery, sized};
use super::{Client, Factory, Limits};
use toolbus_engine::{Command, Mailboxes, Refusal};

fn id(n: u64) -> String {
    format!("m-{n}")
}

pub fn messages_are_pushed_in_deliver_order(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let sender = Client::attach(&mailboxes, "sender");
    for n in 0..500 {
        sender.deliver(delivery("recipient", &id(n), n));
    }
    for n in 0..500 {
        recipient.expect_message(&id(n), 1);
        if n % 3 == 0 {
            recipient.ack(&id(n));
        }
    }
    recipient.expect_nothing();
}

pub fn queued_messages_are_pushed_before_new_ones(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    for n in 0..100 {
        sender.deliver_receipted(delivery("recipient", &id(n), n));
    }
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for n in 100..200 {
        sender.deliver(delivery("recipient", &id(n), n));
    }
    for n in 0..200 {
        recipient.expect_message(&id(n), 1);
    }
    recipient.expect_nothing();
}

pub fn the_window_bounds_unacknowledged_messages(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_messages: 4, ..Limits::default() });
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for n in 0..20 {
        sender.deliver_receipted(delivery("recipient", &id(n), n));
    }
    for n in 0..4 {
        recipient.expect_message(&id(n), 1);
    }
    recipient.expect_nothing();
    assert_eq!(recipient.status().mailboxes[0].in_flight, 4);
    // Acknowledged out of order.
    for n in [3, 1, 0, 2] {
        recipient.ack(&id(n));
    }
    for n in 4..20 {
        recipient.expect_message(&id(n), 1);
        assert!(recipient.status().mailboxes[0].in_flight <= 4);
        recipient.ack(&id(n));
    }
    recipient.expect_nothing();
}

pub fn the_window_bounds_bytes_and_a_larger_message_is_pushed_alone(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { window_bytes: 10_000, ..Limits::default() });
    let sender = Client::attach(&mailboxes, "sender");
    let recipient = Client::subscribed(&mailboxes, "recipient");
    for (n, bytes) in [(0, 4_000), (1, 4_000), (2, 4_000), (3, 50_000), (4, 10)] {
        sender.deliver_receipted(sized("recipient", &id(n), n, bytes));
    }
    recipient.expect_message(&id(0), 1);
    recipient.expect_message(&id(1), 1);
    recipient.expect_nothing();
    // One acknowledgement makes room for a message of the same size, but not for the large one.
    recipient.ack(&id(0));
    recipient.expect_message(&id(2), 1);
    recipient.expect_nothing();
    recipient.ack(&id(1));
    recipient.expect_nothing();
    recipient.ack(&id(2));
    recipient.expect_message(&id(3), 1);
    recipient.expect_nothing();
    recipient.ack(&id(3));
    recipient.expect_message(&id(4), 1);
}

pub fn unacknowledged_messages_are_redelivered_first_with_attempts(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let mut recipient = Client::subscribed(&mailboxes, "recipient");
    for n in 0..3 {
        sender.deliver_receipted(delivery("recipient", &id(n), n));
        recipient.expect_message(&id(n), 1);
    }
    assert_eq!(recipient.ack_confirmed(&id(1)), None);
    for attempt in 2..5 {
        recipient.detach();
        sender.deliver_receipted(delivery("recipient", &format!("new-{attempt}"), 1));
        recipient = Client::subscribed(&mailboxes, "recipient");
        recipient.expect_message(&id(0), attempt);
        recipient.expect_message(&id(2), attempt);
        for older in 2..=attempt {
            recipient.expect_message(&format!("new-{older}"), attempt - older + 1);
        }
        recipient.expect_nothing();
    }
}

pub fn a_second_subscriber_displaces_the_first(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    let first = Client::subscribed(&mailboxes, "recipient");
    sender.deliver_receipted(delivery("recipient", "one", 1));
    first.expect_message("one", 1);
    let second = Client::subscribed(&mailboxes, "recipient");
    assert!(matches!(first.expect_refusal(None), Refusal::Displaced { .. }));
    second.expect_message("one", 2);
    sender.deliver_receipted(delivery("recipient", "two", 2));
    second.expect_message("two", 1);
    first.expect_nothing();
    // A displaced connection can still deliver, and acknowledge messages that were pushed to it.
    first.deliver_receipted(delivery("elsewhere", "three", 3));
    assert_eq!(first.ack_confirmed("one"), None);
    // Its end does not affect the second.
    first.detach();
    sender.deliver_receipted(delivery("recipient", "four", 4));
    second.expect_message("four", 1);
    second.expect_nothing();
}

pub fn subscribing_twice_displaces_no_connection(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    recipient.submit(Command::Subscribe);
    recipient.expect_nothing();
    Client::attach(&mailboxes, "sender").deliver(delivery("recipient", "m", 1));
    recipient.expect_message("m", 1);
}

pub fn only_subscribers_are_pushed_to(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let bystander = Client::attach(&mailboxes, "recipient");
    let other = Client::subscribed(&mailboxes, "recipient-2");
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("recipient", "m", 1));
    bystander.expect_nothing();
    other.expect_nothing();
    bystander.submit(Command::Subscribe);
    bystander.expect_message("m", 1);
    assert!(!mailboxes.congested());
}
