//! The call journal on disks that crash and on a real one.

mod crashes;
mod facts;
mod life;
mod lists;
mod support;
mod tidying;
mod waiting;
