//! Plans for contents that are made up.

use super::*;
use std::sync::Arc;
use toolbus_engine::Fingerprint;

fn item(log: usize, mailbox: &str, seq: Seq, accepted_at: Millis, route: u16) -> Item {
    let hash = u128::from(seq) << 32 | u128::from(accepted_at);
    let fingerprint = Fingerprint([seq, log as u64]);
    Item { log, mailbox: Arc::from(mailbox), seq, attempts: None, accepted_at, fingerprint, route, lane: 1, hash }
}

fn id(number: u64, at: Millis) -> Settled {
    Settled { fingerprint: Fingerprint([number, 0]), content: 7, size: 0, at, stored: None }
}

const LIMITS: IdLimits = IdLimits { count: 3, age: 100 };

fn contents(messages: Vec<Item>, ids: Vec<Vec<Settled>>) -> Contents {
    Contents { messages, ids, ..Contents::default() }
}

fn placed(plan: &LogPlan<'_>) -> Vec<(String, Seq, Seq)> {
    plan.messages.iter().map(|(item, seq)| (item.mailbox.to_string(), item.seq, *seq)).collect()
}

#[test]
fn a_partition_continues_the_numbers_of_the_folder() {
    let found =
        contents(vec![item(0, "a", 4, 1, 1), item(0, "a", 9, 2, 1), item(0, "b", 5, 3, 0)], vec![vec![id(1, 5)]]);
    let partitions = Partitions::new(2).expect("a valid number");
    let plans = to_partitions(&found, 12, &MovedState::default(), partitions, LIMITS).expect("few messages");
    let first = Partition(1).first_seq();
    assert_eq!(placed(&plans[0]), [("b".to_owned(), 5, 5)]);
    assert_eq!(placed(&plans[1]), [("a".to_owned(), 4, first + 4), ("a".to_owned(), 9, first + 9)]);
    assert_eq!([plans[0].next_seq, plans[1].next_seq], [12, first + 12]);
    assert!(plans.iter().all(|plan| plan.ids == [id(1, 5)]), "every partition knows every id");
    let too_many = to_partitions(&found, 1 << 48, &MovedState::default(), partitions, LIMITS);
    assert!(matches!(too_many, Err(MoveError::TooManyMessages)));
}

#[test]
fn partitions_are_merged_by_acceptance_and_keep_their_own_order() {
    // The clock of the second partition was set back between its messages.
    let found = contents(
        vec![item(0, "a", 10, 100, 0), item(0, "b", 11, 300, 0), item(1, "a", 20, 200, 0), item(1, "a", 21, 50, 0)],
        vec![vec![], vec![]],
    );
    let states = [MovedState::default(), MovedState::default()];
    let plan = to_folder(&found, &states, LIMITS);
    let of = |mailbox: &str, seq, new| (mailbox.to_owned(), seq, new);
    assert_eq!(placed(&plan), [of("a", 10, 1), of("a", 20, 2), of("a", 21, 3), of("b", 11, 4)]);
    assert_eq!(plan.next_seq, 5);
}

#[test]
fn a_log_remembers_the_newest_ids_once() {
    let newest = |ids: &[Settled]| LIMITS.newest(ids.to_vec());
    assert_eq!(newest(&[id(2, 20), id(1, 10), id(2, 20)]), [id(1, 10), id(2, 20)]);
    assert_eq!(newest(&[id(1, 10), id(2, 20), id(3, 30), id(4, 40)]), [id(2, 20), id(3, 30), id(4, 40)]);
    assert_eq!(newest(&[id(1, 10), id(2, 111)]), [id(2, 111)], "too old");
    assert_eq!(newest(&[]), []);
}
