//! The log and its folder.

mod folder;
mod group_commit;
mod log;
mod prefilled;
