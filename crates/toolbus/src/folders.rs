//! Default folders.

use crate::failure::Failure;
use std::env;
use std::path::{Path, PathBuf};
use toolbus_base::{private_folder, private_root};

/// The data folder of an option or of toolbus.toml, or the default one. It may be a link to the folder; links in it are
/// refused.
pub fn data_root(configured: Option<PathBuf>) -> Result<PathBuf, Failure> {
    root(&configured.map_or_else(data_folder, Ok)?)
}

/// Resolves the path of a data or state folder.
pub fn root(folder: &Path) -> Result<PathBuf, Failure> {
    private_root(folder).map_err(|source| Failure::Folder { folder: folder.to_owned(), source })
}

/// Creates a folder in a data folder, or checks that it is safe to use.
pub fn private(folder: &Path) -> Result<(), Failure> {
    private_folder(folder).map_err(|source| Failure::Folder { folder: folder.to_owned(), source })
}

/// For commands that only read: the folder of any owner, which may be a copy, but not through a link.
pub fn refuse_link(folder: &Path) -> Result<(), Failure> {
    toolbus_base::refuse_link(folder).map_err(|source| Failure::Folder { folder: folder.to_owned(), source })
}

/// `TOOLBUS_DATA`, or `toolbus` in the user's data folder.
fn data_folder() -> Result<PathBuf, Failure> {
    set("TOOLBUS_DATA").or_else(users_data_folder).ok_or(Failure::NoDataFolder)
}

/// The user's data folder without `TOOLBUS_DATA`: the same for all programs of the user.
pub fn users_data_folder() -> Option<PathBuf> {
    let own = absolute("XDG_DATA_HOME").map(|folder| folder.join("toolbus"));
    own.or_else(|| absolute("HOME").map(|home| home.join(".local/share/toolbus")))
}

/// The folder for a user's configuration.
pub fn users_config_folder() -> Option<PathBuf> {
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

/// A relative path would make a folder of the user out of any working folder.
fn absolute(name: &str) -> Option<PathBuf> {
    set(name).filter(|folder| folder.is_absolute())
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub const TOKEN_FILE: &str = toolbus_identity::LOCAL_TOKEN_FILE;
