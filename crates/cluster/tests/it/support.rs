//! Brokers that share one log.

use std::sync::Arc;
use toolbus_cluster::sim_log::SimLog;
use toolbus_cluster::{Follower, StreamDisk, TakeoverError, take_over};
use toolbus_wal::{ChecksumKey, Disk, DiskFile, MemoryDisk};

pub const KEY: ChecksumKey = ChecksumKey(5);
pub const FILE: &str = "segment-0000000001.log";

/// A follower without any local files.
pub fn follower() -> Follower {
    Follower::new(Arc::new(MemoryDisk::default()), KEY)
}

/// A broker takes the partition over.
pub fn broker(log: &SimLog, number: usize, epoch: u64) -> Result<StreamDisk, TakeoverError> {
    take_over(log.of_broker(number), follower(), epoch)
}

/// Creates a file with synced content.
pub fn create(disk: &dyn Disk, name: &str, content: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(name).expect("the mirror takes files");
    file.append(content).expect("the mirror takes bytes");
    file.sync().expect("the log takes entries");
    file
}

/// The content of a file.
pub fn read(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("the file exists");
    let mut bytes = vec![0; file.size().expect("the file has a size") as usize];
    file.read_at(0, &mut bytes).expect("the file can be read");
    bytes
}
