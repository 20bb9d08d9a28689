//! Where the messages of a folder go, and which messages of a cluster stay.

use super::to_cluster::FolderSource;
use super::to_folder::ClusterSource;
use super::*;
use toolbus_broker::StatePlace;
use toolbus_cluster::Partition;
use toolbus_engine::{Batch, Message, Sender, fingerprint};
use toolbus_identity::{AgentsFolder, NewAgent};
use toolbus_protocol::{AgentRef, Body, InboxMessage};
use toolbus_store::{Disk, FolderDisk, Store};

/// A folder with one message for each sender, recipient and kind.
fn folder(path: &Path, messages: &[(&str, &str, &str)]) {
    let (disk, identity) = FolderDisk::open(path).expect("a new folder");
    let log = Log::open(Arc::new(disk), StatePlace::in_folder(path), identity.seed).expect("a new log");
    for (seq, (from, to, kind)) in (1..).zip(messages) {
        let envelope = InboxMessage::new(AgentRef::new(*from), *kind, Body::null()).seal();
        let message = Message {
            seq,
            mailbox: (*to).into(),
            from: Arc::new(Sender { name: (*from).into(), role: None }),
            id: envelope.id.clone(),
            correlation_id: None,
            fingerprint: fingerprint(identity.seed, to, &envelope.id),
            sealed: envelope.sealed().clone(),
            content: seq,
            accepted_at: seq,
            expires_at: None,
        };
        let batch = Batch { next_seq: seq + 1, puts: vec![Arc::new(message)], ..Batch::default() };
        log.store.write(&batch).expect("there is room");
    }
    log.store.sync().expect("there is room");
    let agents = AgentsFolder::new(path);
    let desk = NewAgent { name: "desk", role: "host", host: true, operator: false, lifetime: None };
    agents.add(&desk).expect("a new agent");
}

#[test]
fn a_message_goes_to_the_partition_where_a_router_would_have_put_it() {
    let temporary = tempfile::tempdir().expect("a folder");
    let messages = [
        ("ana", "desk", "mcp_request"),
        ("desk#mcp", "ana", "mcp_reply"),
        ("desk", "ana", "mcp_event"),
        ("ana", "desk", "mcp_event"),
        ("bo", "ana", "reply"),
        ("desk", "ana", "task"),
        ("ana", "bo#dead", "task"),
    ];
    folder(temporary.path(), &messages);
    let partitions = Partitions::DEFAULT;
    let (disk, identity) = FolderDisk::open(temporary.path()).expect("it opens");
    let source = FolderSource::read(Arc::new(disk), temporary.path(), &identity, partitions).expect("readable");
    let mut found: Vec<(u64, u16)> = source.contents.messages.iter().map(|item| (item.seq, item.route)).collect();
    found.sort_unstable();
    let of = |names: [&str; 7]| names.map(|name| partitions.of(name).0);
    let expected: Vec<(u64, u16)> = (1..).zip(of(["desk", "desk", "desk", "desk", "bo", "ana", "bo"])).collect();
    assert_eq!(found, expected);
    assert!(of(["desk", "ana", "bo", "", "", "", ""])[..3].windows(2).all(|pair| pair[0] != pair[1]), "they differ");
}

#[test]
fn messages_of_agents_that_have_ended_are_not_moved_out_of_a_cluster() {
    let disks: Vec<Arc<dyn Disk>> = (0..2).map(|_| Arc::new(toolbus_wal::MemoryDisk::default()) as _).collect();
    for (number, disk) in disks.iter().enumerate() {
        let place = StatePlace::in_partition(disk, 7);
        let log = Log::open(Arc::clone(disk), place, 7).expect("a new log");
        let temporary = tempfile::tempdir().expect("a folder");
        let first = Partition(number as u16).first_seq();
        // The second partition does not know yet that ana was revoked.
        let known = match number {
            0 => format!(r#"{{"ana":{{"latest":3,"generation":1,"before":{}}}}}"#, first + 9),
            _ => r#"{"ana":{"incarnation":3,"latest":3,"generation":0,"before":0}}"#.to_owned(),
        };
        std::fs::write(temporary.path().join("generations.json"), known).expect("writable");
        log.place.write(&StatePlace::in_folder(temporary.path()).read().expect("readable")).expect("there is room");
        for (seq, (from, to)) in (first + 1..).zip([("ana", "bo"), ("bo", "ana#mcp"), ("bo", "desk")]) {
            let envelope = InboxMessage::new(AgentRef::new(from), "task", Body::null()).seal();
            let message = Message {
                seq,
                mailbox: to.into(),
                from: Arc::new(Sender { name: from.into(), role: None }),
                fingerprint: fingerprint(7, to, &envelope.id),
                id: envelope.id.clone(),
                correlation_id: None,
                sealed: envelope.sealed().clone(),
                content: seq,
                accepted_at: 5,
                expires_at: None,
            };
            let batch = Batch { next_seq: seq + 1, puts: vec![Arc::new(message)], ..Batch::default() };
            log.store.write(&batch).expect("there is room");
        }
    }
    let source = ClusterSource::read(disks.clone(), 7).expect("readable");
    assert_eq!((source.contents.messages.len(), source.contents.left_out), (2, 4));
    let plan = source.plan();
    assert!(plan.messages.iter().all(|(item, _)| &*item.mailbox == "desk"));
    assert_eq!((plan.ids.len(), plan.state.generations()), (4, 1), "their ids are known");
    let kept = source.contents.messages.iter().map(|item| (item.log, Arc::clone(&item.mailbox), item.seq)).collect();
    check_same_id(&source, &disks, kept);
}

/// The same message in both partitions is refused: a folder would keep only one of them.
fn check_same_id(source: &ClusterSource, disks: &[Arc<dyn Disk>], kept: Vec<(usize, Arc<str>, u64)>) {
    let (log, mailbox, seq) = &kept[0];
    let message = source.logs[*log].store.read(mailbox, *seq, 1, 1).expect("readable").messages.remove(0);
    let other = 1 - log;
    let place = StatePlace::in_partition(&disks[other], 7);
    let target = Log::open(Arc::clone(&disks[other]), place, 7).expect("a log");
    let seq = Partition(other as u16).first_seq() + 50;
    let copy = crate::copy::renumbered(&message, seq);
    let batch = Batch { next_seq: seq + 1, puts: vec![Arc::new(copy)], ..Batch::default() };
    target.store.write(&batch).expect("there is room");
    let refused = ClusterSource::read(disks.to_vec(), 7).err();
    assert!(matches!(refused, Some(MoveError::SameId { mailbox }) if mailbox == "desk"));
}
