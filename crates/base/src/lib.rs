//! Small things that several crates need and that belong to none of them. No crate of the workspace is used here.

mod backoff;
mod boxed;
mod files;
mod hex;
mod names;
mod nearest;
mod private;
mod rights;
mod share;
mod text;
mod time;
mod trusted;

pub use backoff::Backoff;
pub use boxed::BoxFuture;
pub use files::{replace_file, replace_file_unsynced, replace_file_with_mode, sync_folder};
pub use hex::{from_hex, from_hex_of_any_length, hex};
pub use names::{DEAD_LETTER_SUFFIX, principal_of};
pub use nearest::{MIN_SIMILARITY, nearest, or_list, similarity};
pub use private::{
    UnsafePath, UnsafeReason, open_private, open_unlinked, private_folder, read_private, read_private_text, refuse_link,
};
pub use rights::Rights;
pub use share::Share;
pub use text::{escaped, fold_case, terminal_line, terminal_text};
pub use time::now_ms;
pub use trusted::{
    Trust, append_to_trusted, check_trusted, open_trusted, private_root, read_trusted, read_trusted_text,
};
