//! Changes of a partition's owner, as the connections of a broker see them.

use crate::mailboxes_contract::client::{Client, delivery};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, CoreOptions};
use toolbus_cluster::Slot;
use toolbus_engine::{Command, Delivery, Outgoing, Refusal};

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

#[test]
fn a_deadline_runs_while_a_command_waits_for_an_owner() {
    let folder = TempDir::new().expect("a folder");
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let slot = Arc::new(Slot::new(Arc::new(move || clock.load(Ordering::Relaxed))));
    let (ann, bob) = (Client::attach(&slot, "ann"), Client::attach(&slot, "bob"));
    bob.submit(Command::Subscribe);
    let with_deadline = |id, deadline| Delivery { deadline_ms: Some(deadline), ..delivery("bob", id, 1) };
    ann.submit(Command::Deliver(with_deadline("late", 5_000)));
    ann.submit(Command::Deliver(with_deadline("timely", 60_000)));
    time.store(10_000, Ordering::Relaxed);
    slot.end_waiting(20_000);
    slot.set(Some(core(&folder, "owner")));
    assert!(matches!(ann.next(), Outgoing::Refused { refusal: Refusal::Expired { .. }, .. }));
    let Outgoing::Message { message, deadline_ms, .. } = bob.next() else { panic!("no message") };
    assert!(message.id == "timely" && deadline_ms.is_some_and(|left| left <= 50_000), "{deadline_ms:?}");
}

#[test]
fn a_connection_whose_commands_wait_for_too_long_ends() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let slot = Arc::new(Slot::new(Arc::new(move || clock.load(Ordering::Relaxed))));
    let (ann, bob) = (Client::attach(&slot, "ann"), Client::attach(&slot, "bob"));
    ann.submit(Command::Deliver(delivery("bob", "1", 1)));
    slot.end_waiting(20_000);
    time.store(20_001, Ordering::Relaxed);
    bob.submit(Command::Deliver(delivery("ann", "2", 2)));
    slot.end_waiting(20_000);
    assert!(matches!(ann.next(), Outgoing::Moved));
    assert!(bob.take_queued().is_empty());
}
