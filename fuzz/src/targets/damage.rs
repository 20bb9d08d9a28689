//! Damages the files of a log as the fuzzer chooses.

use crate::input::Input;
use std::hash::{DefaultHasher, Hash, Hasher};
use toolbus_wal::Disk;

/// The key of a log's checksums. It depends on the whole input, because the fuzzer learns the operands of comparisons and
/// could forge a record with a constant key.
pub fn secret(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish()
}

/// Checks that the records of a damaged log are some of those that were written, in their order and none twice.
pub fn check_some_of<T: PartialEq + std::fmt::Debug>(written: &[T], read: &[T]) {
    let mut rest = written.iter();
    for one in read {
        assert!(rest.any(|other| other == one), "{read:?} is not a part of {written:?}");
    }
}

/// Changes, cuts, extends and copies ranges of files, until the input ends.
pub fn damage(disk: &dyn Disk, input: &mut Input<'_>) {
    let mut files: Vec<String> = disk.list().expect("a list");
    files.sort();
    for _ in 0..4 {
        if input.is_empty() || files.is_empty() {
            return;
        }
        let file = disk.open(&files[usize::from(input.byte()) % files.len()]).expect("a file");
        let mut bytes = vec![0; file.size().expect("a size") as usize];
        file.read_at(0, &mut bytes).expect("its content");
        let at = input.below(bytes.len() + 1);
        match input.byte() % 5 {
            0 => bytes.truncate(at),
            1 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= input.byte().max(1)),
            2 => {
                let count = input.below(64);
                bytes[at..].iter_mut().take(count).for_each(|byte| *byte = 0);
            }
            3 => {
                let count = input.below(64).min(input.0.len());
                let (inserted, rest) = input.0.split_at(count);
                input.0 = rest;
                bytes.splice(at..at, inserted.iter().copied());
            }
            _ => {
                let (from, count) = (input.below(bytes.len() + 1), input.below(256));
                let copied: Vec<u8> = bytes[from..].iter().take(count).copied().collect();
                bytes.splice(at..at, copied);
            }
        }
        file.truncate(0).expect("an empty file");
        file.append(&bytes).expect("written");
    }
}
