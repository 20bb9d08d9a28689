//! Compares a text with a file in `tests/snapshots`. With `TOOLBUS_SNAPSHOTS=rewrite` the file is written instead.

use std::path::{Path, PathBuf};

#[track_caller]
pub fn check_snapshot(name: &str, text: &str) {
    let file = snapshot_folder().join(name);
    if is_rewriting() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is writable");
        return std::fs::write(&file, text).expect("the snapshot is writable");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{} differs; TOOLBUS_SNAPSHOTS=rewrite accepts the text", file.display());
}

pub fn snapshot_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

pub fn is_rewriting() -> bool {
    std::env::var_os("TOOLBUS_SNAPSHOTS").is_some_and(|mode| mode == "rewrite")
}
