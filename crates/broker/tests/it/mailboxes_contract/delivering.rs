//! Delivering messages: accepted once, receipted when durable, and refused at the limits.

use super::client::{delivery, sized};
use super::{Client, Factory, Limits};
use toolbus_engine::{Command, Mailboxes, Refusal};

pub fn a_message_is_pushed_to_its_recipient_and_receipted_to_its_sender(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let sender = Client::attach(&mailboxes, "sender");
    let sent = delivery("recipient", "m", 1);
    sender.deliver(sent.clone());
    let message = recipient.expect_message("m", 1);
    assert_eq!((&*message.mailbox, &*message.from.name), ("recipient", "sender"));
    assert_eq!(message.from.role.as_deref(), Some("tester"));
    assert_eq!(message.sealed, sent.sealed);
    assert_eq!(sender.expect_receipt("m"), 1);
    recipient.expect_nothing();
    sender.expect_nothing();
}

pub fn every_deliver_is_numbered_whether_accepted_or_refused(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    assert_eq!(sender.deliver_receipted(delivery("a", "one", 1)), 1);
    sender.deliver(delivery("a", "one", 999));
    sender.expect_refusal(Some("one"));
    assert_eq!(sender.deliver_receipted(delivery("a", "three", 3)), 3);
    // Numbers start anew on each connection.
    assert_eq!(Client::attach(&mailboxes, "sender").deliver_receipted(delivery("a", "four", 4)), 1);
}

pub fn submit_drains_the_list(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let client = Client::attach(&mailboxes, "client");
    let mut commands: Vec<Command> =
        (0..10).map(|n| Command::Deliver(delivery("a", &format!("m-{n}"), n))).chain([Command::Subscribe]).collect();
    mailboxes.submit(client.conn, &mut commands);
    assert!(commands.is_empty());
    for n in 0..10 {
        client.expect_receipt(&format!("m-{n}"));
    }
}

pub fn a_duplicate_is_stored_once_and_receipted_each_time(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    for _ in 0..3 {
        sender.deliver(delivery("recipient", "m", 1));
    }
    for number in 1..=3 {
        assert_eq!(sender.expect_receipt("m"), number);
    }
    // The same holds on another connection of the same sender.
    Client::attach(&mailboxes, "sender").deliver_receipted(delivery("recipient", "m", 1));
    let recipient = Client::subscribed(&mailboxes, "recipient");
    recipient.expect_message("m", 1);
    assert_eq!(recipient.status().mailboxes[0].messages, 1);
    recipient.expect_nothing();
}

pub fn a_duplicate_with_other_content_or_sender_is_refused(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("recipient", "m", 1));
    sender.deliver(delivery("recipient", "m", 2));
    assert!(matches!(sender.expect_refusal(Some("m")), Refusal::IdConflict { .. }));
    let copycat = Client::attach(&mailboxes, "copycat");
    copycat.deliver(delivery("recipient", "m", 1));
    assert!(matches!(copycat.expect_refusal(Some("m")), Refusal::IdConflict { .. }));
    let recipient = Client::subscribed(&mailboxes, "recipient");
    assert_eq!(&*recipient.expect_message("m", 1).from.name, "sender");
    recipient.expect_nothing();
}

pub fn a_duplicate_of_a_settled_message_is_recognised(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let recipient = Client::subscribed(&mailboxes, "recipient");
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver(delivery("recipient", "m", 1));
    recipient.expect_message("m", 1);
    assert_eq!(recipient.ack_confirmed("m"), None);
    sender.expect_receipt("m");
    assert_eq!(sender.deliver_receipted(delivery("recipient", "m", 1)), 2);
    sender.deliver(delivery("recipient", "m", 2));
    assert!(matches!(sender.expect_refusal(Some("m")), Refusal::IdConflict { .. }));
    recipient.expect_nothing();
}

pub fn the_same_id_in_two_mailboxes_is_two_messages(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("a", "m", 1));
    sender.deliver_receipted(delivery("b", "m", 2));
    let (a, b) = (Client::subscribed(&mailboxes, "a"), Client::subscribed(&mailboxes, "b"));
    a.expect_message("m", 1);
    b.expect_message("m", 1);
    assert_eq!(a.ack_confirmed("m"), None);
    drop(b);
    Client::subscribed(&mailboxes, "b").expect_message("m", 2);
}

pub fn a_full_mailbox_refuses_and_has_room_again_after_an_ack(factory: &impl Factory) {
    let mailboxes = factory.open(Limits { mailbox_messages: 2, ..Limits::default() });
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("full", "one", 1));
    sender.deliver_receipted(delivery("full", "two", 2));
    sender.deliver(delivery("full", "three", 3));
    assert!(matches!(sender.expect_refusal(Some("three")), Refusal::MailboxFull { messages: 2, .. }));
    sender.deliver_receipted(delivery("other", "three", 3));
    let recipient = Client::subscribed(&mailboxes, "full");
    recipient.expect_message("one", 1);
    recipient.expect_message("two", 1);
    assert_eq!(recipient.ack_confirmed("one"), None);
    sender.deliver(sized("full", "three", 3, 1000));
    recipient.expect_message("three", 1);
}

pub fn a_detached_connection_neither_receives_nor_sends(factory: &impl Factory) {
    let mailboxes = factory.open(Limits::default());
    let gone = Client::subscribed(&mailboxes, "gone");
    mailboxes.detach(gone.conn);
    mailboxes.detach(gone.conn);
    gone.deliver(delivery("recipient", "m", 1));
    gone.submit(Command::Subscribe);
    let sender = Client::attach(&mailboxes, "sender");
    sender.deliver_receipted(delivery("gone", "n", 1));
    let recipient = Client::subscribed(&mailboxes, "recipient");
    recipient.expect_nothing();
    Client::subscribed(&mailboxes, "gone").expect_message("n", 1);
}
