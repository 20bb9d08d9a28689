//! The machine crashes at every disk operation in turn, and again during the recovery.

use toolbus_testkit::simulation::{CrashPoint, Ending, run_to_crash_point};

/// Upper bound of the disk operations with which a recovery changes the disk.
const RECOVERY_CALLS: u64 = 10;

#[test]
fn a_crash_at_any_disk_operation_violates_no_invariant() {
    let calls = check_every_call(|call| (0..16).map(|seed| CrashPoint { call, recovery_call: None, seed }).collect());
    println!("{calls} crash points");
    assert!(calls > 100, "the script has only {calls} disk operations");
}

#[test]
fn a_crash_during_recovery_violates_no_invariant() {
    check_every_call(|call| {
        let recovery_calls = (0..RECOVERY_CALLS).map(Some);
        recovery_calls.map(|recovery_call| CrashPoint { call, recovery_call, seed: call }).collect()
    });
}

/// Returns the number of disk operations of the script.
fn check_every_call(points: impl Fn(u64) -> Vec<CrashPoint>) -> u64 {
    let crashes = |call| points(call).into_iter().filter(|point| ending(*point) == Ending::Crashed).count();
    (0..).find(|call| crashes(*call) == 0).expect("the script ends")
}

fn ending(point: CrashPoint) -> Ending {
    run_to_crash_point(point).unwrap_or_else(|violation| panic!("{violation}"))
}
