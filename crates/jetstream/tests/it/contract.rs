//! The contract of a replicated log on real servers.

use crate::servers::{MAX_BYTES, Servers, runtime};
use toolbus_cluster::contract::SUITE;
use toolbus_cluster::{Partition, ReplicatedLog};

#[test]
fn a_stream_keeps_the_contract() {
    let Some(servers) = Servers::start() else { return };
    let runtime = runtime();
    let cluster = runtime.block_on(servers.connect("contract"));
    for (number, (name, check)) in SUITE.into_iter().enumerate() {
        println!("{name}");
        let log = runtime.block_on(cluster.log(Partition(number as u16), runtime.handle().clone())).unwrap();
        check(&log);
    }
}

#[test]
fn the_room_in_a_limited_stream_is_known_to_any_thread() {
    let Some(servers) = Servers::start() else { return };
    let runtime = runtime();
    let cluster = runtime.block_on(servers.connect("room"));
    let log = runtime.block_on(cluster.log(Partition(0), runtime.handle().clone())).unwrap();
    let room = log.free_bytes().unwrap();
    assert!(room > MAX_BYTES / 2 && room <= MAX_BYTES, "{room}");
}
