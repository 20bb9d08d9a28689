//! The contract of a replicated log on the modelled one.

use toolbus_cluster::contract::SUITE;
use toolbus_cluster::sim_log::SimLog;

#[test]
fn the_modelled_log_keeps_the_contract() {
    for (name, check) in SUITE {
        println!("{name}");
        check(&*SimLog::new(1).of_broker(0));
    }
}
