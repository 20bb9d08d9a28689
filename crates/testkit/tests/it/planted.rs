//! A harness that can't find a known defect proves nothing about unknown ones.

use toolbus_engine::PlantedBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::{Options, run};

/// Within so many seeds every planted defect has to show, by the symptom that it must have.
const SEEDS: u64 = 1_000;

#[track_caller]
fn check_found(planted: Planted, symptom: &str) {
    check_found_with(Options { planted: Some(planted), ..Options::default() }, symptom);
}

#[track_caller]
fn check_found_with(options: Options, symptom: &str) {
    let planted = options.planted.expect("a defect");
    let mut failures = (0..SEEDS).filter_map(|seed| run(seed, options).err());
    let failure = failures.find(|failure| failure.what.contains(symptom));
    let failure = failure.unwrap_or_else(|| panic!("{planted} was not found within {SEEDS} seeds"));
    println!("{planted}: {failure}");
}

#[test]
fn a_receipt_before_the_sync_is_found() {
    check_found(Planted::Engine(PlantedBug::ReceiptBeforeSync), "was receipted before it was safe");
}

#[test]
fn an_acknowledgement_by_suffix_is_found() {
    check_found(Planted::Engine(PlantedBug::AckBySuffix), "was receipted before it was safe");
}

#[test]
fn ids_forgotten_at_a_restart_are_found() {
    check_found(Planted::Engine(PlantedBug::DedupForgotten), "was taken in twice");
}

#[test]
fn a_push_after_the_deadline_is_found() {
    check_found(Planted::Engine(PlantedBug::DeadlineIgnored), "was pushed after its deadline");
}

#[test]
fn a_request_receipted_while_its_reply_is_not_safe_is_found() {
    check_found(Planted::Engine(PlantedBug::FoldWithoutWaiting), "was receipted before it was safe");
}

#[test]
fn a_confirmation_before_the_sync_is_found() {
    check_found(Planted::Engine(PlantedBug::AckResultBeforeSync), "was confirmed before it was safe");
}

#[test]
fn a_missing_redelivery_is_found() {
    check_found(Planted::Engine(PlantedBug::NoRedelivery), "something is left that never goes");
}

#[test]
fn a_push_past_the_window_is_found() {
    check_found(Planted::Engine(PlantedBug::WindowIgnored), "was pushed past the window");
}

#[test]
fn a_cancel_by_anyone_is_found() {
    check_found(Planted::Engine(PlantedBug::CancelByAnyone), "is not what was refused");
}

#[test]
fn a_push_after_a_cancel_in_flight_is_found() {
    check_found(Planted::Engine(PlantedBug::CancelForgotten), "although it was settled: Cancelled");
}

#[test]
fn a_reply_that_is_taken_from_anyone_is_found() {
    let planted = Some(Planted::Engine(PlantedBug::ReplyByAnyone));
    check_found_with(Options { planted, restricted: true, ..Options::default() }, "a forged message was taken");
}

#[test]
fn syncs_that_do_nothing_are_found() {
    check_found(Planted::NoSync, "was on stable storage and is gone");
}

#[test]
fn a_new_id_on_a_retry_is_found() {
    check_found(Planted::NewIdOnRetry, "was taken in twice");
}

#[track_caller]
fn check_found_among_calls(planted: Planted, symptom: &str) {
    check_found_with(Options { planted: Some(planted), calls: true, ..Options::default() }, symptom);
}

#[test]
fn a_tool_that_is_told_before_the_start_is_safe_is_found() {
    check_found_among_calls(Planted::StartNotSynced, "had 2 effects");
}

#[test]
fn a_caller_that_is_told_before_the_result_is_safe_is_found() {
    check_found_among_calls(Planted::ResultAfterReply, "was told");
}

#[test]
fn a_result_that_turns_into_something_else_for_another_caller_is_found() {
    check_found_among_calls(Planted::ResultAfterReply, "turned from");
}

#[test]
fn a_call_under_a_new_id_on_a_retry_is_found() {
    check_found_among_calls(Planted::NewIdOnRetry, "had 2 effects");
}

#[test]
fn a_run_after_the_deadline_is_found() {
    check_found_among_calls(Planted::HostIgnoresDeadline, "was run after its deadline");
}

#[test]
fn a_join_without_a_look_at_the_arguments_is_found() {
    check_found_among_calls(Planted::JoinWithoutArguments, "which is not the same call");
}

#[test]
fn a_join_to_what_was_collected_is_found() {
    check_found_among_calls(Planted::JoinCollected, "whose answer had been collected");
}

#[test]
fn syncs_of_the_journal_that_do_nothing_are_found() {
    check_found_among_calls(Planted::NoSync, "had 2 effects");
}

#[test]
fn a_task_that_is_accepted_before_it_is_safe_is_found() {
    check_found_among_calls(Planted::TaskNotSynced, "was accepted and is gone");
}
