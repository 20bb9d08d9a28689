//! The simulation of calls must find every planted defect of the client of hosts and workers, of the worker's side of a
//! call, and of what the engine knows about repeated requests.

use crate::planted::check_found_with;
use toolbus_client::simulation::PlantedBug as ClientBug;
use toolbus_engine::PlantedBug as EngineBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::Options;
use toolbus_worker::simulation::PlantedBug as WorkerBug;

#[track_caller]
fn check_found(planted: Planted, symptom: &str) {
    check_found_with(Options { planted: Some(planted), calls: true, ..Options::default() }, symptom);
}

#[track_caller]
fn check_client(bug: ClientBug, symptom: &str) {
    check_found(Planted::Client(bug), symptom);
}

#[track_caller]
fn check_worker(bug: WorkerBug, symptom: &str) {
    check_found(Planted::Worker(bug), symptom);
}

#[test]
fn a_repeated_request_that_counts_as_never_pushed_is_found() {
    check_found(Planted::Engine(EngineBug::RepetitionTakenForNew), "was started");
}

#[test]
fn a_reply_with_the_tag_of_an_earlier_connection_is_found() {
    check_client(ClientBug::StaleTag, "by the tag of another connection");
}

#[test]
fn requests_that_are_never_acknowledged_are_found() {
    check_client(ClientBug::NeverAcknowledged, "never");
}

#[test]
fn a_request_that_is_acknowledged_twice_is_found() {
    check_client(ClientBug::AcknowledgedTwice, "was acknowledged twice");
}

#[test]
fn a_request_that_is_acknowledged_before_its_reply_has_a_receipt_is_found() {
    check_client(ClientBug::AcknowledgedEarly, "never");
}

#[test]
fn a_request_that_is_sent_again_after_its_deadline_is_found() {
    check_client(ClientBug::ExpiredResent, "was sent again after its deadline");
}

#[test]
fn a_request_that_is_sent_again_under_a_new_id_is_found() {
    check_client(ClientBug::NewIdOnResend, "was sent under the new id");
}

#[test]
fn an_unrecorded_reply_without_the_acknowledgement_of_its_request_is_found() {
    check_client(ClientBug::ReplyWithoutRequest, "was sent without its acknowledgement");
}

#[test]
fn requests_that_are_not_sent_again_are_found() {
    check_client(ClientBug::NothingResent, "was never answered");
}

#[test]
fn a_worker_that_cancels_its_calls_when_it_stops_is_found() {
    check_worker(WorkerBug::StopCancels, "was cancelled, and not by its client");
}

#[test]
fn the_withdrawal_of_a_delivered_call_is_found() {
    check_worker(WorkerBug::DeliveredWithdrawn, "was cancelled, and not by its client");
}

#[test]
fn an_unconfirmed_withdrawal_that_is_reported_as_final_is_found() {
    check_worker(WorkerBug::UnconfirmedWithdrawal, "was started after it was answered");
}
