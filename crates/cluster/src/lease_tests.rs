//! The lease of one broker, event by event.

use super::*;

fn lease() -> Lease {
    Lease::new("a", LeaseOptions::default())
}

fn record(owner: &str, epoch: u64) -> LeaseRecord {
    LeaseRecord { owner: (!owner.is_empty()).then(|| owner.to_owned()), epoch }
}

fn seen(revision: u64, owner: &str, epoch: u64) -> LeaseEvent {
    LeaseEvent::Seen { revision, record: record(owner, epoch) }
}

fn written(revision: u64, owner: &str, epoch: u64) -> LeaseEffect {
    LeaseEffect::Write { revision, record: record(owner, epoch) }
}

/// A lease of broker `a` that owns the partition with epoch 1 since time 10.
fn owning() -> Lease {
    let mut lease = lease();
    assert_eq!(lease.handle(0, seen(0, "", 0)), [written(0, "a", 1)]);
    assert_eq!(lease.handle(5, seen(1, "a", 1)), [LeaseEffect::TakeOver { epoch: 1 }]);
    assert_eq!(lease.serving(), None);
    assert_eq!(lease.handle(10, LeaseEvent::TakenOver { epoch: 1, ok: true }), []);
    assert_eq!(lease.serving(), Some(1));
    lease
}

#[test]
fn a_free_partition_is_claimed_at_once() {
    owning();
}

#[test]
fn a_silent_owner_is_replaced_only_after_the_silence() {
    let mut lease = lease();
    assert_eq!(lease.handle(0, seen(7, "b", 3)), []);
    assert_eq!(lease.handle(11_999, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(11_999, seen(8, "b", 3)), []);
    assert_eq!(lease.handle(23_998, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(23_999, LeaseEvent::Tick), [written(8, "a", 4)]);
}

#[test]
fn an_owner_that_is_gone_is_replaced_at_once() {
    let mut lease = lease();
    assert_eq!(lease.handle(0, seen(7, "b", 3)), []);
    assert_eq!(lease.handle(5, LeaseEvent::Gone { broker: "c".into() }), []);
    assert_eq!(lease.handle(5, LeaseEvent::Gone { broker: "b".into() }), [written(7, "a", 4)]);
}

#[test]
fn a_lost_claim_leads_back_to_watching() {
    let mut lease = lease();
    lease.handle(0, seen(0, "", 0));
    assert_eq!(lease.handle(1, LeaseEvent::Conflict), []);
    assert_eq!(lease.handle(2, seen(1, "b", 1)), []);
    assert_eq!(lease.handle(12_001, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(12_002, LeaseEvent::Tick), [written(1, "a", 2)]);
}

#[test]
fn a_claim_without_an_answer_is_repeated() {
    let mut lease = lease();
    lease.handle(0, seen(0, "", 0));
    assert_eq!(lease.handle(1_000, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(1_001, seen(0, "", 0)), [written(0, "a", 1)]);
}

#[test]
fn an_owner_renews_its_record() {
    let mut lease = owning();
    assert_eq!(lease.handle(2_004, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(2_005, LeaseEvent::Tick), [written(1, "a", 1)]);
    assert_eq!(lease.handle(2_010, seen(2, "a", 1)), []);
    assert_eq!(lease.handle(4_005, LeaseEvent::Tick), [written(2, "a", 1)]);
}

#[test]
fn an_owner_without_confirmations_suspends_before_others_may_claim() {
    let mut lease = owning();
    let is_suspend = |effects: &[LeaseEffect]| effects.contains(&LeaseEffect::Suspend);
    assert!(!is_suspend(&lease.handle(10_009, LeaseEvent::Tick)));
    assert!(is_suspend(&lease.handle(10_010, LeaseEvent::Tick)));
    assert_eq!(lease.serving(), None);
    assert_eq!(lease.handle(10_500, LeaseEvent::Confirmed { epoch: 1 }), [LeaseEffect::Resume]);
    assert_eq!(lease.serving(), Some(1));
    let LeaseOptions { silence, renewal, suspension, .. } = LeaseOptions::default();
    assert!(suspension + renewal <= silence, "a renewal that was seen may be as old as the interval");
}

#[test]
fn a_deposed_owner_closes() {
    let mut lease = owning();
    assert_eq!(lease.handle(20, seen(2, "b", 2)), [LeaseEffect::Close]);
    assert_eq!(lease.serving(), None);
    let mut lease = owning();
    let effects = lease.handle(20, LeaseEvent::Closed { epoch: 1 });
    assert_eq!(effects, [LeaseEffect::Close, written(1, "", 1)]);
    assert_eq!(lease.handle(21, seen(2, "b", 2)), []);
}

#[test]
fn a_released_partition_is_claimed_by_another_broker() {
    let mut lease = owning();
    assert_eq!(lease.handle(20, LeaseEvent::Release), [LeaseEffect::Close, written(1, "", 1)]);
    assert_eq!(lease.handle(25, seen(2, "", 1)), []);
    assert_eq!(lease.handle(99_999, LeaseEvent::Tick), [], "it is left to others");
    assert_eq!(lease.handle(100_000, LeaseEvent::Wanted { after: 50 }), []);
    assert_eq!(lease.handle(100_049, LeaseEvent::Tick), []);
    assert_eq!(lease.handle(100_050, LeaseEvent::Tick), [written(2, "a", 2)]);
    let mut other = Lease::new("b", LeaseOptions::default());
    other.handle(6, seen(1, "a", 1));
    assert_eq!(other.handle(25, seen(2, "", 1)), [written(2, "b", 2)]);
}

#[test]
fn a_failed_takeover_is_released() {
    let mut lease = lease();
    lease.handle(0, seen(0, "", 0));
    lease.handle(5, seen(1, "a", 1));
    let effects = lease.handle(9, LeaseEvent::TakenOver { epoch: 1, ok: false });
    assert_eq!(effects, [LeaseEffect::Close, written(1, "", 1)]);
}
