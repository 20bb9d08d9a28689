//! The simulation of a cluster must find every planted defect.

use crate::planted::check_found_with;
use toolbus_cluster::PlantedBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::Options;

#[track_caller]
fn check_found(bug: PlantedBug, symptom: &str) {
    let planted = Some(Planted::Cluster(bug));
    check_found_with(Options { planted, cluster: true, ..Options::default() }, symptom);
}

#[test]
fn appends_without_an_expected_position_are_found() {
    check_found(PlantedBug::NoExpectedSequence, "was receipted and is lost");
}

#[test]
fn a_second_outstanding_append_is_found() {
    check_found(PlantedBug::TwoOutstanding, "was receipted and is lost");
}

#[test]
fn another_id_of_a_repeated_append_is_found() {
    check_found(PlantedBug::NewIdOnResend, "was fenced although no other one took the partition over");
}

#[test]
fn replayed_entries_of_deposed_owners_are_found() {
    check_found(PlantedBug::NoEpochFilter, "the log can't be replayed");
}

#[test]
fn a_receipt_before_the_log_answers_is_found() {
    check_found(PlantedBug::SyncBeforeAck, "was receipted and is lost");
}

#[test]
fn an_owner_that_goes_on_after_its_lease_is_found() {
    check_found(PlantedBug::GoesOnAfterLease, "its ownership was not confirmed for too long");
}

#[test]
fn a_replay_that_skips_an_entry_is_found() {
    check_found(PlantedBug::ReplaySkips, "the log can't be replayed");
}

#[test]
fn a_purge_before_the_copy_is_found() {
    check_found(PlantedBug::TrimBeforeCopy, "was receipted and is lost");
}
