//! A store on a real stream, while NATS servers are killed and brokers take over from each other.

use crate::servers::{Servers, runtime};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_cluster::{Follower, Partition, take_over};
use toolbus_engine::{AttemptsNote, Batch, Message, RestoredMessage, Sender, Settled, fingerprint};
use toolbus_jetstream::Cluster;
use toolbus_store::{LogStore, Replay, Store, StoreError, StoreOptions};
use toolbus_wal::{ChecksumKey, MemoryDisk};

const PARTITION: Partition = Partition(0);

#[derive(Default)]
struct Replayed(Vec<u64>);

impl Replay for Replayed {
    fn message(&mut self, message: RestoredMessage<'_>) {
        self.0.push(message.seq);
    }
    fn settled(&mut self, _: &Settled) {}
    fn attempts(&mut self, _: &AttemptsNote) {}
}

/// A broker with that epoch takes the partition over. Returns its store and the messages that it found.
fn broker(cluster: &Cluster, runtime: &tokio::runtime::Runtime, epoch: u64) -> (LogStore, Vec<u64>) {
    let log = runtime.block_on(cluster.log(PARTITION, runtime.handle().clone())).unwrap();
    let follower = Follower::new(Arc::new(MemoryDisk::default()), ChecksumKey(1));
    let disk = take_over(Arc::new(log), follower, epoch).unwrap();
    let mut replayed = Replayed::default();
    let (store, recovery) = LogStore::open(Arc::new(disk), StoreOptions::default(), &mut replayed).unwrap();
    assert_eq!(recovery.damaged, 0);
    (store, replayed.0)
}

fn batch(seq: u64) -> Batch {
    let id = seq.to_string();
    let message = Message {
        seq,
        mailbox: "bob".into(),
        fingerprint: fingerprint(1, "bob", &id),
        id: id.into(),
        from: Arc::new(Sender { name: "ann".into(), role: None }),
        correlation_id: None,
        sealed: Bytes::from(vec![seq as u8; 2_000]),
        content: seq,
        accepted_at: 1,
        expires_at: None,
    };
    Batch { puts: vec![Arc::new(message)], next_seq: seq + 1, sync: true, ..Batch::default() }
}

fn write(store: &LogStore, seq: u64) -> Result<(), StoreError> {
    store.write(&batch(seq)).and_then(|()| store.sync())
}

#[test]
fn nothing_confirmed_is_lost_when_servers_and_owners_change() {
    let Some(mut servers) = Servers::start() else { return };
    let runtime = runtime();
    let cluster = runtime.block_on(servers.connect("failover"));
    let (first, found) = broker(&cluster, &runtime, 1);
    assert_eq!(found, [0; 0]);
    let mut seq = 0;
    // Each server is killed once, so one of them was the leader of the stream.
    for victim in 0..3 {
        for _ in 0..20 {
            seq += 1;
            write(&first, seq).unwrap();
        }
        servers.kill(victim);
        for _ in 0..20 {
            seq += 1;
            write(&first, seq).expect("an append waits for the next leader");
        }
        servers.restart(victim);
        servers.wait_until_healthy(victim);
    }
    let (second, found) = broker(&cluster, &runtime, 2);
    assert_eq!(found, (1..=seq).collect::<Vec<_>>());
    assert!(write(&first, seq + 1).is_err(), "the first owner was deposed");
    write(&second, seq + 1).unwrap();
    let (_third, found) = broker(&cluster, &runtime, 3);
    assert_eq!(found, (1..=seq + 1).collect::<Vec<_>>());
}
