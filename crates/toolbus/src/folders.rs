//! Default folders.

use crate::failure::Failure;
use std::env;
use std::path::PathBuf;

/// `TOOLBUS_DATA`, or `toolbus` in the user's data folder.
pub fn data_folder() -> Result<PathBuf, Failure> {
    set("TOOLBUS_DATA").or_else(users_data_folder).ok_or(Failure::NoDataFolder)
}

/// The user's data folder without `TOOLBUS_DATA`: the same for all programs of the user.
pub fn users_data_folder() -> Option<PathBuf> {
    let own = set("XDG_DATA_HOME").map(|folder| folder.join("toolbus"));
    own.or_else(|| set("HOME").map(|home| home.join(".local/share/toolbus")))
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub const TOKEN_FILE: &str = toolbus_identity::LOCAL_TOKEN_FILE;
