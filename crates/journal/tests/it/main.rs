//! The call journal on disks that crash and on a real one.

mod crashes;
mod lists;
mod support;
mod waiting;
