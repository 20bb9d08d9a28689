//! Measures whether two logs of one process should be synced by two threads at once or by one thread after the other, and
//! whether preallocated segments are synced faster than growing ones.
//!
//! `cargo run --release -p toolbus-wal --example sync_together -- FOLDER` prints the median of all rounds, which are
//! interleaved so that other load on the machine affects all variants alike. A latency is the time until both logs of a
//! pair of appends are durable.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

const ROUNDS: usize = 9;
const PAIRS: u64 = 200;
/// About the size of a journal record.
const RECORD: [u8; 256] = [7; 256];
const SEGMENT_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Threads {
    Two,
    One,
}

#[derive(Clone, Copy, Debug)]
enum Segment {
    Growing,
    Preallocated,
}

fn main() -> io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let variants = [
        (Threads::Two, Segment::Growing),
        (Threads::One, Segment::Growing),
        (Threads::Two, Segment::Preallocated),
        (Threads::One, Segment::Preallocated),
    ];
    let mut rounds = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (times, (threads, segment)) in rounds.iter_mut().zip(variants) {
            let logs = ["sync-a", "sync-b"].map(|name| Log::create(&folder, name, segment));
            let [a, b] = logs;
            times.push(match threads {
                Threads::Two => at_once(a?, b?)?,
                Threads::One => in_turn(a?, b?)?,
            });
        }
    }
    for (times, (threads, segment)) in rounds.iter_mut().zip(variants) {
        times.sort_by(f64::total_cmp);
        let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{threads:?} thread(s), {segment:?}: {median:.0} µs per pair ({least:.0} to {most:.0}), {ROUNDS} rounds"
        );
    }
    Ok(())
}

struct Log {
    file: File,
    path: PathBuf,
    end: u64,
}

impl Log {
    fn create(folder: &Path, name: &str, segment: Segment) -> io::Result<Self> {
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        if let Segment::Preallocated = segment {
            fallocate(&file, FallocateFlags::empty(), 0, SEGMENT_BYTES)?;
        }
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        Ok(Self { file, path, end: 0 })
    }

    fn append(&mut self) -> io::Result<()> {
        self.file.write_all_at(&RECORD, self.end)?;
        self.end += RECORD.len() as u64;
        self.file.sync_data()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

/// The mean time of a pair, in microseconds.
fn mean(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / PAIRS as f64
}

fn in_turn(mut a: Log, mut b: Log) -> io::Result<f64> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        a.append()?;
        b.append()?;
    }
    Ok(mean(start))
}

fn at_once(mut a: Log, mut b: Log) -> io::Result<f64> {
    let (request, requests) = sync_channel::<()>(1);
    let (answer, answers) = sync_channel(1);
    let other = std::thread::spawn(move || while requests.recv().is_ok() && answer.send(b.append()).is_ok() {});
    let start = Instant::now();
    for _ in 0..PAIRS {
        request.send(()).map_err(io::Error::other)?;
        a.append()?;
        answers.recv().map_err(io::Error::other)??;
    }
    let time = mean(start);
    drop(request);
    other.join().map_err(|_| io::Error::other("the other thread panicked"))?;
    Ok(time)
}
