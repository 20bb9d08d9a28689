//! Changes of a partition's owner, as the connections of a broker see them.

use crate::mailboxes_contract::client::{Client, delivery};
use std::sync::Arc;
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, CoreOptions};
use toolbus_cluster::Slot;
use toolbus_engine::{Command, Outgoing};

fn core(folder: &TempDir, name: &str) -> Arc<BrokerCore> {
    BrokerCore::open(&folder.path().join(name), CoreOptions::default()).expect("the folder opens")
}

#[test]
fn a_connection_that_only_subscribed_follows_its_partition() {
    let folder = TempDir::new().expect("a folder");
    let slot = Arc::new(Slot::default());
    let bob = Client::attach(&slot, "bob");
    bob.submit(Command::Subscribe);
    slot.set(Some(core(&folder, "first")));
    slot.set(None);
    let second = core(&folder, "second");
    slot.set(Some(second.clone()));
    let ann = Client::attach(&second, "ann");
    ann.submit(Command::Deliver(delivery("bob", "1", 1)));
    assert!(matches!(bob.next(), Outgoing::Message { message, .. } if message.id == "1"), "through the second owner");
    slot.set(None);
    assert!(matches!(bob.next(), Outgoing::Moved), "the message is not acknowledged");
}

#[test]
fn commands_wait_for_an_owner() {
    let folder = TempDir::new().expect("a folder");
    let slot = Arc::new(Slot::default());
    let ann = Client::attach(&slot, "ann");
    ann.submit(Command::Deliver(delivery("bob", "1", 1)));
    ann.submit(Command::Deliver(delivery("bob", "2", 2)));
    assert!(ann.take_queued().is_empty());
    slot.set(Some(core(&folder, "owner")));
    for expected in [1, 2] {
        assert!(matches!(ann.next(), Outgoing::Receipt { number, .. } if number == expected));
    }
}

#[test]
fn a_connection_with_deliveries_ends_when_the_owner_changes() {
    let folder = TempDir::new().expect("a folder");
    let slot = Arc::new(Slot::default());
    slot.set(Some(core(&folder, "first")));
    let ann = Client::attach(&slot, "ann");
    ann.submit(Command::Deliver(delivery("bob", "1", 1)));
    assert!(matches!(ann.next(), Outgoing::Receipt { .. }));
    slot.set(Some(core(&folder, "second")));
    assert!(matches!(ann.next(), Outgoing::Moved));
    ann.submit(Command::Deliver(delivery("bob", "2", 2)));
    assert!(ann.take_queued().is_empty(), "its number of deliveries is not the one of the new owner");
}

#[test]
fn too_many_waiting_commands_end_the_connection() {
    let slot = Arc::new(Slot::default());
    let ann = Client::attach(&slot, "ann");
    for number in 0..=4096 {
        assert!(ann.take_queued().is_empty());
        ann.submit(Command::Deliver(delivery("bob", &number.to_string(), number)));
    }
    assert!(matches!(ann.next(), Outgoing::Moved));
}
