//! The credentials that a broker creates for its own machine.

use crate::support::authenticate;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use toolbus_identity::{AgentsFolder, Registry, Rights, ensure_local_credentials};

fn token(path: &Path) -> String {
    fs::read_to_string(path).expect("present").trim().to_owned()
}

#[test]
fn credentials_are_created_once_and_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = ensure_local_credentials(dir.path()).expect("created");
    let (local, operator) = (token(&paths.token), token(&paths.operator));
    for path in [&paths.token, &paths.operator] {
        assert_eq!(fs::metadata(path).expect("present").permissions().mode() & 0o777, 0o600);
    }
    let registry = Registry::open(dir.path()).expect("readable");
    let identity = authenticate(&registry, &local).expect("accepted");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("local", Some("local")));
    assert_eq!(identity.rights, Rights::WORKER);
    let identity = authenticate(&registry, &operator).expect("accepted");
    assert_eq!((identity.agent.role.as_deref(), identity.rights), (Some("operator"), Rights::OPERATOR));

    assert_eq!(ensure_local_credentials(dir.path()).expect("present"), paths);
    assert_eq!((token(&paths.token), token(&paths.operator)), (local, operator));
}

#[test]
fn a_lost_or_invalid_token_is_replaced_and_the_old_one_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    // A leftover of an original broker.
    fs::write(dir.path().join("token"), "0123456789abcdef\n").expect("written");
    let paths = ensure_local_credentials(dir.path()).expect("created");
    let first = token(&paths.token);
    assert!(first.starts_with("tb_"));
    fs::remove_file(&paths.token).expect("removed");
    ensure_local_credentials(dir.path()).expect("created again");
    let second = token(&paths.token);
    let registry = Registry::open(dir.path()).expect("readable");
    assert!(authenticate(&registry, &first).is_err() && authenticate(&registry, &second).is_ok());

    AgentsFolder::new(dir.path()).rotate("local", Duration::ZERO, None).expect("a known agent");
    ensure_local_credentials(dir.path()).expect("created again");
    registry.refresh();
    assert!(authenticate(&registry, &second).is_err() && authenticate(&registry, &token(&paths.token)).is_ok());
}

#[test]
fn a_revoked_local_agent_stays_revoked() {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = ensure_local_credentials(dir.path()).expect("created");
    AgentsFolder::new(dir.path()).revoke("local").expect("a known agent");
    fs::remove_file(&paths.token).expect("removed");
    ensure_local_credentials(dir.path()).expect("nothing to do");
    assert!(!paths.token.exists());
    let registry = Registry::open(dir.path()).expect("readable");
    assert!(authenticate(&registry, &token(&paths.operator)).is_ok());
}
