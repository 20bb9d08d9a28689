//! The simulation of calls must find every planted defect of the call machine, the journal and the clients.

use crate::planted::check_found_with;
use toolbus_call::PlantedBug as CallBug;
use toolbus_journal::PlantedBug as JournalBug;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::Options;

#[track_caller]
fn check_found(planted: Planted, symptom: &str) {
    check_found_with(Options { planted: Some(planted), calls: true, ..Options::default() }, symptom);
}

#[track_caller]
fn check_machine(bug: CallBug, symptom: &str) {
    check_found(Planted::Call(bug), symptom);
}

#[track_caller]
fn check_journal(bug: JournalBug, symptom: &str) {
    check_found(Planted::Journal(bug), symptom);
}

#[test]
fn a_call_under_a_new_id_on_a_retry_is_found() {
    check_found(Planted::NewIdOnRetry, "was started 2 times");
}

#[test]
fn a_request_sent_before_its_start_is_durable_is_found() {
    check_machine(CallBug::StartNotSynced, "was started without START in the journal");
}

#[test]
fn a_request_sent_without_a_start_is_found() {
    check_machine(CallBug::StartNotWritten, "was started without START in the journal");
}

#[test]
fn a_reply_before_its_result_is_written_is_found() {
    check_machine(CallBug::ResultAfterReply, "is answered before its RESULT is written");
}

#[test]
fn a_cancelled_call_that_runs_after_a_restart_is_found() {
    check_machine(CallBug::CancelNotWritten, "was started after its cancellation was acknowledged");
}

#[test]
fn a_start_after_the_deadline_is_found() {
    check_machine(CallBug::DeadlineIgnored, "was sent after its deadline");
}

#[test]
fn a_cancel_that_is_forgotten_is_found() {
    check_machine(CallBug::CancelLost, "was sent after it was cancelled");
}

#[test]
fn an_interrupted_call_that_runs_again_is_found() {
    check_machine(CallBug::InterruptedRuns, "was started 2 times");
}

#[test]
fn a_call_that_runs_again_after_its_server_died_is_found() {
    check_machine(CallBug::DiedRuns, "was started 2 times");
}

#[test]
fn attempts_without_a_limit_are_found() {
    check_machine(CallBug::AttemptsUnlimited, "more than the attempt limit");
}

#[test]
fn a_call_that_another_journal_has_started_is_found() {
    check_machine(CallBug::UnsureRuns, "was started 2 times");
}

#[test]
fn a_refused_request_that_runs_is_found() {
    check_machine(CallBug::RefusedRuns, "was started after it was answered");
}

#[test]
fn a_join_to_a_call_whose_caller_is_connected_is_found() {
    check_machine(CallBug::JoinConnected, "whose caller was connected");
}

#[test]
fn a_join_to_a_collected_answer_is_found() {
    check_machine(CallBug::JoinCollected, "whose answer had been collected");
}

#[test]
fn a_repeated_call_that_does_not_join_the_running_one_is_found() {
    check_machine(CallBug::RunningNotJoined, "which it repeats, had one");
}

#[test]
fn a_task_accepted_before_it_is_durable_is_found() {
    check_machine(CallBug::TaskNotSynced, "was accepted before its entry is durable");
}

#[test]
fn a_task_without_an_answer_is_found() {
    check_machine(CallBug::TaskAnswerLost, "never ended");
}

#[test]
fn a_start_during_a_drain_is_found() {
    check_machine(CallBug::DrainStarts, "was started during a drain");
}

#[test]
fn an_answer_made_of_the_end_of_a_server_at_shutdown_is_found() {
    check_machine(CallBug::ShutdownAnswers, "the end of its server at shutdown");
}

#[test]
fn permits_that_are_not_returned_are_found() {
    check_machine(CallBug::PermitsLeak, "permits or places in a session are left");
}

#[test]
fn requests_of_a_session_out_of_order_are_found() {
    check_machine(CallBug::OrderIgnored, "of the same session");
}

#[test]
fn an_orphan_cancelled_while_another_call_waits_for_it_is_found() {
    check_machine(CallBug::OrphanWithJoiner, "was cancelled as an orphan");
}

#[test]
fn an_orphan_cancelled_although_its_caller_is_back_is_found() {
    check_machine(CallBug::CallerBackIgnored, "as an orphan of a connected caller");
}

#[test]
fn a_wait_without_an_end_is_found() {
    check_machine(CallBug::TimeoutIgnored, "the drain did not finish");
}

#[test]
fn syncs_of_the_journal_that_do_nothing_are_found() {
    check_journal(JournalBug::NoSync, "was started without START in the journal");
}

#[test]
fn a_start_reported_before_its_sync_is_found() {
    check_journal(JournalBug::StartNotSynced, "was started without START in the journal");
}

#[test]
fn a_task_reported_before_its_sync_is_found() {
    check_journal(JournalBug::TaskNotSynced, "was accepted before its entry is durable");
}

#[test]
fn a_result_reported_before_it_is_written_is_found() {
    check_journal(JournalBug::ResultNotWritten, "is answered before its RESULT is written");
}

#[test]
fn entries_that_are_not_synced_at_open_are_found() {
    check_journal(JournalBug::OpenedWithoutSync, "is not durable");
}

#[test]
fn entries_dropped_by_compaction_are_found() {
    check_journal(JournalBug::UnappliedCompacted, "is answered before its RESULT is written");
}
