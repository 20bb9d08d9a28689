//! Tests of trusted files. Those about other users need root, who can give files away; without root they skip that part.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

const OTHER_USER: u32 = 12_345;

fn reason(result: io::Result<impl Sized>) -> Option<UnsafeReason> {
    UnsafePath::in_chain(&result.err()?).map(|found| found.reason)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn own_files_are_read_through_own_links_and_folders() {
    let root = tempfile::tempdir().expect("a folder");
    let path = |name: &str| root.path().join(name);
    fs::create_dir_all(path("a/b")).expect("a folder");
    fs::write(path("a/b/f"), "1").expect("a file");
    symlink("a/b", path("folder")).expect("a link");
    symlink("../a/./b/f", path("a/up")).expect("a link");
    symlink(path("a/up"), path("absolute")).expect("a link");
    for name in ["a/b/f", "folder/f", "folder/../b/f", "a/../folder/f", "absolute", "a/up"] {
        assert_eq!(read_trusted_text(&path(name)).ok().as_deref(), Some("1"), "{name}");
        assert_eq!(private_root(&path(name)).expect("no foreign link"), path("a/b/f").canonicalize().expect("a file"));
    }
    symlink("circle", path("circle")).expect("a link");
    assert!(read_trusted(&path("circle")).is_err() && private_root(&path("circle")).is_err());
    assert_eq!(read_trusted(&path("missing")).expect_err("missing").kind(), io::ErrorKind::NotFound);
}

#[test]
fn relative_paths_stay_relative() {
    for (given, expected) in
        [("a", "a"), ("a/b/", "a/b"), ("./a/.", "./a"), (".", "."), ("../../a", "../../a"), ("/..", "/..")]
    {
        assert_eq!(private_root(Path::new(given)).expect("no link"), Path::new(expected));
    }
}

#[test]
fn a_pipe_of_the_process_is_read() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    io::Write::write_all(&mut writer, b"secret").expect("written");
    drop(writer);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
    assert_eq!(read_trusted_text(Path::new(&format!("/dev/fd/{fd}"))).expect("as <(...) of a shell gives"), "secret");
}

#[test]
fn a_file_that_all_can_write_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("f");
    fs::write(&file, "1").expect("a file");
    fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("a mode");
    assert_eq!(reason(read_trusted(&file)), Some(UnsafeReason::Shared));
    assert_eq!(reason(check_trusted(&file)), Some(UnsafeReason::Shared));
    assert!(append_to_trusted(&file).is_ok(), "it is not read");
    assert_eq!(read_trusted(Path::new("/dev/null")).expect("a device"), b"");
}

#[test]
fn files_and_links_of_another_user_are_refused_wherever_they_are_in_the_path() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let path = |name: &str| root.path().join(name);
    let foreign = Some(UnsafeReason::ForeignOwner(OTHER_USER));
    fs::create_dir(path("real")).expect("a folder");
    fs::write(path("real/f"), "1").expect("a file");
    symlink(path("real/f"), path("theirs")).expect("a link");
    symlink(path("theirs"), path("mine")).expect("a link");
    symlink(path("real"), path("folder")).expect("a link");
    for link in ["theirs", "folder"] {
        lchown(path(link), Some(OTHER_USER), None).expect("given away");
    }
    for name in ["theirs", "mine", "folder/f"] {
        assert_eq!(reason(read_trusted(&path(name))), foreign, "{name}");
        assert_eq!(reason(append_to_trusted(&path(name))), foreign, "{name}");
    }
    for folder in ["folder", "folder/", "folder/.", "folder/../real", "folder/new"] {
        assert_eq!(reason(private_root(&path(folder))), foreign, "{folder}");
    }
    assert_eq!(reason(append_to_trusted(&path("folder/new"))), foreign);
    assert!(!path("real/new").exists());
    chown(path("real/f"), Some(OTHER_USER), None).expect("given away");
    assert_eq!(reason(read_trusted(&path("real/f"))), foreign);
    assert_eq!(reason(append_to_trusted(&path("real/f"))), foreign);
}

#[test]
fn the_owner_of_a_named_file_is_trusted_with_what_belongs_to_it() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let (named, beside, third) = (root.path().join("named"), root.path().join("beside"), root.path().join("third"));
    for (file, owner) in [(&named, OTHER_USER), (&beside, OTHER_USER), (&third, OTHER_USER + 1)] {
        fs::write(file, "1").expect("a file");
        chown(file, Some(owner), None).expect("given away");
    }
    let trust = Trust::in_owner_of(&named);
    assert_eq!(trust.read_text(&beside).expect("of the same owner"), "1");
    assert_eq!(reason(trust.read_text(&third)), Some(UnsafeReason::ForeignOwner(OTHER_USER + 1)));
    fs::set_permissions(&beside, Permissions::from_mode(0o666)).expect("a mode");
    assert_eq!(reason(trust.read_text(&beside)), Some(UnsafeReason::Shared));
}
