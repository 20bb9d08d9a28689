//! A file that is filled with zeros in advance: the zeros are never taken for data, and a crash that keeps any of the
//! sectors written since the last sync costs at most what was not synced.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use toolbus_wal::DiskFile;
use toolbus_wal::prefilled::{PrefilledFile, RawFile};
use toolbus_wal::sim_disk::Rng;

const SECTOR: usize = 512;
const FILL: u64 = 256 << 10;

/// A file whose unsynced sectors may be lost one by one.
#[derive(Clone, Default)]
struct Sectors(Arc<Mutex<Content>>);

#[derive(Clone, Default)]
struct Content {
    data: Vec<u8>,
    synced: Vec<u8>,
    dirty: BTreeSet<usize>,
    is_full: bool,
}

impl Sectors {
    /// What is left after a power cut: the synced content, and some of the sectors that were written since.
    fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let content = self.0.lock().expect("not poisoned").clone();
        let mut left = content.synced.clone();
        for sector in content.dirty.iter().filter(|_| rng.below(2) == 0) {
            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(content.data.len()));
            left.resize(left.len().max(to), 0);
            left[from..to].copy_from_slice(&content.data[from..to]);
        }
        Self::with(left)
    }

    fn with(data: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Content { synced: data.clone(), data, ..Content::default() })))
    }

    fn len(&self) -> u64 {
        self.0.lock().expect("not poisoned").data.len() as u64
    }
}

impl RawFile for Sectors {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn write_at(&self, offset: u64, parts: [&[u8]; 2]) -> io::Result<()> {
        let bytes = &parts.concat();
        let mut content = self.0.lock().expect("not poisoned");
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if content.is_full && to > content.data.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let length = content.data.len().max(to);
        content.data.resize(length, 0);
        content.data[from..to].copy_from_slice(bytes);
        content.dirty.extend(from / SECTOR..=to.saturating_sub(1) / SECTOR);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = self.0.lock().expect("not poisoned");
        let wanted = content.data.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(wanted.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.lock().expect("not poisoned").data.resize(length as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.0.lock().expect("not poisoned");
        content.synced = content.data.clone();
        content.dirty.clear();
        Ok(())
    }
}

fn open(file: &Sectors) -> PrefilledFile<Sectors> {
    PrefilledFile::open(file.clone()).expect("it opens")
}

fn data(file: &PrefilledFile<Sectors>) -> Vec<u8> {
    let mut data = vec![0; file.size().expect("a size") as usize];
    file.read_at(0, &mut data).expect("it is read");
    data
}

#[test]
fn small_appends_do_not_make_the_file_grow_and_are_all_there_again() {
    let sectors = Sectors::default();
    let (file, mut expected) = (open(&sectors), Vec::new());
    let mut lengths = BTreeSet::new();
    for number in 0..2_000_u32 {
        // Data may end with zeros, and may be nothing but zeros.
        let bytes = if number % 3 == 0 { vec![0; 40] } else { number.to_be_bytes().repeat(50) };
        file.append(&bytes).expect("appended");
        expected.extend(bytes);
        lengths.insert(sectors.len());
        if number % 97 == 0 {
            assert_eq!(data(&open(&sectors)), expected);
        }
    }
    assert_eq!((data(&file), data(&open(&sectors))), (expected.clone(), expected));
    assert!(lengths.len() <= 3, "the file grew {} times", lengths.len());
}

#[test]
fn a_power_cut_costs_nothing_that_was_synced_and_adds_no_zeros_to_it() {
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let sectors = Sectors::default();
        let (mut file, mut synced, mut written) = (open(&sectors), Vec::new(), Vec::new());
        for _ in 0..rng.below(30) {
            let length = [1, 15, 16, 17, 200, 600, 5_000, 20_000, 300_000][rng.below(9) as usize];
            let bytes = vec![rng.below(3) as u8; length];
            file.append(&bytes).expect("appended");
            written.extend(bytes);
            match rng.below(6) {
                0 => file = open(&sectors),
                1..3 => {
                    file.sync().expect("synced");
                    synced.clone_from(&written);
                }
                _ => {}
            }
        }
        assert_eq!(data(&open(&sectors)), written, "seed {seed}: after a crash of the process");
        let left = data(&open(&sectors.after_power_cut(&mut rng)));
        assert!(left.len() >= synced.len(), "seed {seed}: {} of {} synced bytes", left.len(), synced.len());
        assert_eq!(left[..synced.len()], synced, "seed {seed}");
        if synced == written {
            assert_eq!(left.len(), synced.len(), "seed {seed}: bytes that were not written");
        }
    }
}

#[test]
fn a_file_of_an_earlier_version_has_no_marker_and_keeps_zeros_at_its_end() {
    for content in [Vec::new(), vec![0; 100], [vec![7; 100], vec![0; 100]].concat()] {
        let sectors = Sectors::with(content.clone());
        assert_eq!(data(&open(&sectors)), content);
        open(&sectors).append(b"more").expect("appended");
        assert_eq!(data(&open(&sectors)), [&content[..], b"more"].concat());
    }
}

#[test]
fn a_truncated_file_has_nothing_behind_its_data_and_can_be_appended_to() {
    let sectors = Sectors::default();
    let file = open(&sectors);
    file.append(b"one two").expect("appended");
    file.truncate(3).expect("truncated");
    assert_eq!((sectors.len(), data(&open(&sectors))), (3, b"one".to_vec()));
    file.append(b" three").expect("appended");
    assert_eq!(data(&open(&sectors)), b"one three");
}

#[test]
fn a_disk_without_room_for_zeros_still_takes_data_that_fits() {
    let sectors = Sectors::default();
    let file = open(&sectors);
    file.append(&[1; 100]).expect("appended");
    sectors.0.lock().expect("not poisoned").is_full = true;
    let rest = (FILL - 100) as usize;
    for _ in 0..rest / 100 {
        file.append(&[1; 100]).expect("it fits into the zeros");
    }
    assert_eq!(file.append(&[2; 1_000]).expect_err("no room").kind(), io::ErrorKind::StorageFull);
    assert_eq!(data(&open(&sectors)), vec![1; 100 + rest / 100 * 100]);
}
