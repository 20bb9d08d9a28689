//! Small things that several crates need and that belong to none of them.

mod nearest;

pub use nearest::{MIN_SIMILARITY, nearest, or_list, similarity};
