//! The deletion of old files.

use super::*;

fn writer(folder: &Path, max_files: usize) -> Writer {
    let options = AuditOptions { max_file_bytes: 1, max_files, ..AuditOptions::default() };
    let shared = Arc::new(Shared::default());
    Writer::open(folder, options, shared).expect("a log")
}

fn append_one(writer: &mut Writer) {
    writer.append([&Record::Missed { count: 1 }].into_iter()).expect("written");
}

#[test]
fn an_old_file_is_deleted_only_after_the_record_of_its_removal_is_durable() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = writer(folder.path(), 1);
    append_one(&mut writer);
    assert_eq!(files::numbers(folder.path()).expect("a list"), [1, 2]);
    writer.sync().expect("synced");
    assert_eq!(files::numbers(folder.path()).expect("a list"), [2]);

    append_one(&mut writer);
    // A pipe can be written, but not synced.
    let (_reader, pipe) = std::io::pipe().expect("a pipe");
    writer.file = File::from(std::os::fd::OwnedFd::from(pipe));
    assert!(writer.sync().is_err());
    assert_eq!(files::numbers(folder.path()).expect("a list"), [2, 3]);
}
