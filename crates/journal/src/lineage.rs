//! The lineage of a journal: a random name that it gets whenever entries of an earlier process may have been lost. Under a
//! name that stays the same, the broker takes the journal for complete and doesn't fence its mailbox.
//!
//! The lineage is the name of an empty file, so that it changes atomically on any [`Disk`]. It must be durable before
//! the last trace of the loss disappears: a process that finds a repaired journal can't see the loss any more.

use std::io;
use toolbus_wal::Disk;

const PREFIX: &str = "lineage-";

/// The lineage of the journal on this disk. `None` if no entry was ever lost.
pub fn lineage(disk: &dyn Disk) -> io::Result<Option<String>> {
    Ok(files(disk)?.pop())
}

/// Durably gives the journal a new lineage.
pub(crate) fn renew_lineage(disk: &dyn Disk) -> io::Result<()> {
    let earlier = files(disk)?;
    let number = |name: &String| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok();
    let next = earlier.iter().filter_map(number).max().unwrap_or_default() + 1;
    disk.create(&format!("{PREFIX}{next:010}-{}", uuid::Uuid::new_v4()))?;
    disk.sync_folder()?;
    earlier.iter().try_for_each(|name| disk.remove(name))
}

/// All lineages whose files were not removed yet, oldest first.
fn files(disk: &dyn Disk) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = disk.list()?.into_iter().filter(|name| name.starts_with(PREFIX)).collect();
    names.sort_unstable();
    Ok(names)
}
