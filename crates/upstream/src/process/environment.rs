//! The environment of a server's process: its configured variables and a few standard ones. It contains no variables of
//! toolbus and none of the host's secrets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

const INHERITED: &[&str] = &[
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
const INHERITED_PREFIXES: &[&str] = &["LC_", "XDG_"];

pub(super) fn of_server(configured: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().filter(|(name, _)| is_inherited(name)).collect();
    env.extend(configured.iter().map(|(name, value)| (name.into(), value.into())));
    env
}

fn is_inherited(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    INHERITED.contains(&name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
