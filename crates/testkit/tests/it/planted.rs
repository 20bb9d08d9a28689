//! A harness that can't find a known defect proves nothing about unknown ones.

use toolbus_engine::PlantedBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::{self, Options};

/// Within so many seeds every planted defect has to show.
const SEEDS: u64 = 1_000;

fn is_found(planted: Planted) {
    let options = Options { planted: Some(planted), ..Options::default() };
    let found = (0..SEEDS).find_map(|seed| simulation::run(seed, options).err());
    let failure = found.unwrap_or_else(|| panic!("{planted} was not found within {SEEDS} seeds"));
    println!("{failure}");
}

#[test]
fn a_receipt_before_the_sync_is_found() {
    is_found(Planted::Engine(PlantedBug::ReceiptBeforeSync));
}

#[test]
fn a_missing_sync_is_found() {
    is_found(Planted::NoSync);
}

#[test]
fn a_new_id_on_retry_is_found() {
    is_found(Planted::NewIdOnRetry);
}

#[test]
fn an_acknowledgement_by_suffix_is_found() {
    is_found(Planted::Engine(PlantedBug::AckBySuffix));
}

#[test]
fn ids_forgotten_at_a_restart_are_found() {
    is_found(Planted::Engine(PlantedBug::DedupForgotten));
}

#[test]
fn an_ignored_deadline_is_found() {
    is_found(Planted::Engine(PlantedBug::DeadlineIgnored));
}

#[test]
fn a_request_receipted_before_its_reply_is_safe_is_found() {
    is_found(Planted::Engine(PlantedBug::FoldWithoutWaiting));
}

#[test]
fn an_acknowledgement_confirmed_before_the_sync_is_found() {
    is_found(Planted::Engine(PlantedBug::AckResultBeforeSync));
}

#[test]
fn a_missing_redelivery_is_found() {
    is_found(Planted::Engine(PlantedBug::NoRedelivery));
}

#[test]
fn an_ignored_window_is_found() {
    is_found(Planted::Engine(PlantedBug::WindowIgnored));
}
