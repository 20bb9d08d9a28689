//! The contract of a replicated log on real servers.

use crate::servers::{Servers, runtime};
use toolbus_cluster::Partition;
use toolbus_cluster::contract::SUITE;

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
