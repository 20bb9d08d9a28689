//! Tests of the call journal, on the simulated disk and in a folder.

mod call_index;
mod compaction;
mod crashes;
mod forgotten;
mod group_commit;
mod journal;
mod lineage;
mod lists;
mod old_format;
mod support;
mod test_journal;
