//! Checksums over messages and ids that are the same in a folder and in the partitions of a cluster: sequence numbers don't
//! count, and of the order only that of the messages that keep theirs.

use std::collections::HashMap;
use toolbus_engine::{Message, Purpose, Settled};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The hash of a message with everything that is stored of it, except its sequence number.
pub fn of_message(message: &Message, attempts: Option<u32>) -> u128 {
    let Message { mailbox, from, id, correlation_id, sealed, fingerprint, content, accepted_at, expires_at, .. } =
        message;
    let mut hash = Xxh3::new();
    for text in [Some(&**mailbox), Some(&*from.name), from.role.as_deref(), Some(&**id), correlation_id.as_deref()] {
        hash.update(&(text.map_or(u64::MAX, |text| text.len() as u64)).to_le_bytes());
        hash.update(text.unwrap_or_default().as_bytes());
    }
    let numbers = [fingerprint.0[0], fingerprint.0[1], *content, *accepted_at, expires_at.unwrap_or_default()];
    numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.update(&attempts.map_or(u64::MAX, u64::from).to_le_bytes());
    hash.update(sealed);
    hash.digest128()
}

/// Messages that keep their order: those of one sender to one mailbox. A cluster keeps replies, events and other messages in
/// different partitions.
pub fn lane_of(message: &Message, purpose: Purpose) -> u128 {
    let class = match purpose {
        Purpose::HostReply | Purpose::Reply => 1,
        Purpose::Event => 2,
        Purpose::Request | Purpose::Other => 3,
    };
    let mut hash = Xxh3::new();
    hash.update(message.mailbox.as_bytes());
    hash.update(&[0]);
    hash.update(message.from.name.as_bytes());
    hash.update(&[0, class]);
    hash.digest128()
}

/// The checksum over messages, each with its lane, in the order that they have.
pub fn of_messages(messages: impl Iterator<Item = (u128, u128)>) -> u128 {
    let mut lanes: HashMap<u128, u128> = HashMap::new();
    for (lane, hash) in messages {
        let chain = lanes.entry(lane).or_default();
        *chain = of_pair(*chain, hash);
    }
    lanes.into_iter().fold(0, |sum, (lane, chain)| sum.wrapping_add(of_pair(lane, chain)))
}

/// The checksum over settled ids.
pub fn of_ids(ids: &[Settled]) -> u128 {
    ids.iter().fold(0, |sum, id| {
        let numbers = [id.fingerprint.0[0], id.fingerprint.0[1], id.content, id.at];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        sum.wrapping_add(xxh3_128(&bytes))
    })
}

fn of_pair(first: u128, second: u128) -> u128 {
    xxh3_128(&[first.to_le_bytes(), second.to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_counts_within_a_lane_only() {
        let of = |messages: &[(u128, u128)]| of_messages(messages.iter().copied());
        let sent = [(1, 10), (1, 11), (2, 20)];
        assert_eq!(of(&sent), of(&[(2, 20), (1, 10), (1, 11)]));
        for changed in [&[(1, 11), (1, 10), (2, 20)][..], &[(1, 10), (2, 20)], &[(1, 10), (1, 11), (2, 21)]] {
            assert_ne!(of(&sent), of(changed), "{changed:?}");
        }
        assert_ne!(of(&sent), of(&[(1, 10), (1, 11), (1, 20)]), "another lane");
    }
}
