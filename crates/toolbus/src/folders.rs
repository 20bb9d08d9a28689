//! Where things are kept when nobody says otherwise.

use crate::failure::Failure;
use std::env;
use std::path::PathBuf;

/// `TOOLBUS_DATA`, or `toolbus` in the user's data folder.
pub fn data_folder() -> Result<PathBuf, Failure> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("TOOLBUS_DATA")
        .or_else(|| set("XDG_DATA_HOME").map(|folder| folder.join("toolbus")))
        .or_else(|| set("HOME").map(|home| home.join(".local/share/toolbus")))
        .ok_or(Failure::NoDataFolder)
}

pub const TOKEN_FILE: &str = "token";
