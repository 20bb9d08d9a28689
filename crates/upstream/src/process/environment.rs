//! What a server's process finds in its environment: what its configuration says, and the little that a program needs
//! to find its home. Nothing of toolbus, and none of the host's secrets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

const PASSED_ON: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "DISPLAY",
    "WAYLAND_DISPLAY",
];
const PASSED_ON_PREFIXES: &[&str] = &["LC_", "XDG_"];

pub(super) fn of_server(configured: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().filter(|(name, _)| is_passed_on(name)).collect();
    env.extend(configured.iter().map(|(name, value)| (name.into(), value.into())));
    env
}

fn is_passed_on(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    PASSED_ON.contains(&name) || PASSED_ON_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
