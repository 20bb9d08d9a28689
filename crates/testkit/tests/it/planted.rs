//! The simulation must find every planted defect: otherwise it would miss unknown ones too.

use toolbus_engine::PlantedBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::{Options, run};

/// Every planted defect must be found within this many seeds, by its expected symptom.
const SEEDS: u64 = 1_000;

#[track_caller]
fn check_found(planted: Planted, symptom: &str) {
    check_found_with(Options { planted: Some(planted), ..Options::default() }, symptom);
}

#[track_caller]
pub fn check_found_with(options: Options, symptom: &str) {
    let planted = options.planted.expect("options name a planted defect");
    let mut failures = (0..SEEDS).filter_map(|seed| run(seed, options).err());
    let failure = failures.find(|failure| failure.what.contains(symptom));
    let failure = failure.unwrap_or_else(|| panic!("{planted} was not found within {SEEDS} seeds"));
    println!("{planted}: {failure}");
}

#[test]
fn a_receipt_before_the_sync_is_found() {
    check_found(Planted::Engine(PlantedBug::ReceiptBeforeSync), "was receipted before it was durable");
}

#[test]
fn an_acknowledgement_by_suffix_is_found() {
    check_found(Planted::Engine(PlantedBug::AckBySuffix), "was receipted before it was durable");
}

#[test]
fn ids_forgotten_at_a_restart_are_found() {
    check_found(Planted::Engine(PlantedBug::DedupForgotten), "was accepted twice");
}

#[test]
fn a_push_after_the_deadline_is_found() {
    check_found(Planted::Engine(PlantedBug::DeadlineIgnored), "was pushed after its deadline");
}

#[test]
fn a_request_receipted_before_its_reply_is_durable_is_found() {
    check_found(Planted::Engine(PlantedBug::FoldWithoutWaiting), "was receipted before it was durable");
}

#[test]
fn a_confirmation_before_the_sync_is_found() {
    check_found(Planted::Engine(PlantedBug::AckResultBeforeSync), "was confirmed before it was durable");
}

#[test]
fn a_missing_redelivery_is_found() {
    check_found(Planted::Engine(PlantedBug::NoRedelivery), "the drain did not finish");
}

#[test]
fn a_push_past_the_window_is_found() {
    check_found(Planted::Engine(PlantedBug::WindowIgnored), "was pushed past the window");
}

#[test]
fn a_cancel_by_anyone_is_found() {
    check_found(Planted::Engine(PlantedBug::CancelByAnyone), "a cancel of another client's message was answered");
}

#[test]
fn a_push_after_a_cancel_in_flight_is_found() {
    check_found(Planted::Engine(PlantedBug::CancelForgotten), "although it was settled: Cancelled");
}

#[test]
fn a_withdrawal_reported_before_the_sync_is_found() {
    check_found(Planted::Engine(PlantedBug::WithdrawnBeforeSync), "was reported as withdrawn before that was durable");
}

#[test]
fn a_reply_accepted_from_anyone_is_found() {
    let planted = Some(Planted::Engine(PlantedBug::ReplyByAnyone));
    check_found_with(Options { planted, restricted: true, ..Options::default() }, "a forged message was accepted");
}

#[test]
fn syncs_that_do_nothing_are_found() {
    check_found(Planted::NoSync, "was durable and is lost");
}

#[test]
fn a_new_id_on_a_retry_is_found() {
    check_found(Planted::NewIdOnRetry, "was accepted twice");
}
