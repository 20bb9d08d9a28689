//! The credentials that a broker makes for its own machine.

use crate::support::enter;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use toolbus_identity::{AgentsFolder, Registry, Rights, ensure_local_credentials};

fn token(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there").trim().to_owned()
}

#[test]
fn both_are_made_once_and_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = ensure_local_credentials(dir.path()).expect("made");
    let (local, operator) = (token(&paths.token), token(&paths.operator));
    for path in [&paths.token, &paths.operator] {
        assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
    }
    let registry = Registry::open(dir.path()).expect("readable");
    let identity = enter(&registry, &local).expect("in");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("local", Some("local")));
    assert_eq!(identity.rights, Rights::WORKER);
    let identity = enter(&registry, &operator).expect("in");
    assert_eq!((identity.agent.role.as_deref(), identity.rights), (Some("operator"), Rights::OPERATOR));

    assert_eq!(ensure_local_credentials(dir.path()).expect("there"), paths);
    assert_eq!((token(&paths.token), token(&paths.operator)), (local, operator));
}

#[test]
fn a_token_that_is_lost_or_does_not_count_is_replaced_and_the_old_one_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    // What a broker of the original's kind left there.
    fs::write(dir.path().join("token"), "0123456789abcdef\n").expect("written");
    let paths = ensure_local_credentials(dir.path()).expect("made");
    let first = token(&paths.token);
    assert!(first.starts_with("tb_"));
    fs::remove_file(&paths.token).expect("lost");
    ensure_local_credentials(dir.path()).expect("made anew");
    let second = token(&paths.token);
    let registry = Registry::open(dir.path()).expect("readable");
    assert!(enter(&registry, &first).is_err() && enter(&registry, &second).is_ok());

    AgentsFolder::new(dir.path()).rotate("local", Duration::ZERO, None).expect("known");
    ensure_local_credentials(dir.path()).expect("made anew");
    registry.refresh();
    assert!(enter(&registry, &second).is_err() && enter(&registry, &token(&paths.token)).is_ok());
}

#[test]
fn what_was_revoked_stays_revoked() {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = ensure_local_credentials(dir.path()).expect("made");
    AgentsFolder::new(dir.path()).revoke("local").expect("known");
    fs::remove_file(&paths.token).expect("lost");
    ensure_local_credentials(dir.path()).expect("nothing to do");
    assert!(!paths.token.exists());
    let registry = Registry::open(dir.path()).expect("readable");
    assert!(enter(&registry, &token(&paths.operator)).is_ok());
}
