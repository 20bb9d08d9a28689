//! Finds a server's command as its process would, to say precisely what is wrong if it isn't there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error("its cwd {} is not a folder", .0.display())]
    Cwd(PathBuf),
    #[error("there is no command {0:?} in PATH")]
    NotInPath(String),
    #[error("there is no command at {}", .0.display())]
    NoFile(PathBuf),
    #[error("{} is not executable", .0.display())]
    NotExecutable(PathBuf),
}

pub(super) fn find(
    command: &str,
    env: &BTreeMap<OsString, OsString>,
    cwd: Option<&Path>,
) -> Result<PathBuf, LookupError> {
    if let Some(cwd) = cwd.filter(|cwd| !cwd.is_dir()) {
        return Err(LookupError::Cwd(cwd.to_owned()));
    }
    if command.contains('/') {
        let path = cwd.map_or_else(|| PathBuf::from(command), |cwd| cwd.join(command));
        let path = std::path::absolute(&path).unwrap_or(path);
        return match fs::metadata(&path) {
            Ok(file) if is_executable(&file) => Ok(path),
            Ok(_) => Err(LookupError::NotExecutable(path)),
            Err(_) => Err(LookupError::NoFile(path)),
        };
    }
    let folders = env.get(&OsString::from("PATH")).map(std::env::split_paths);
    let mut candidates = folders.into_iter().flatten().map(|folder| folder.join(command));
    let found = candidates.find(|path| fs::metadata(path).is_ok_and(|file| is_executable(&file)));
    found.ok_or_else(|| LookupError::NotInPath(command.to_owned()))
}

fn is_executable(file: &fs::Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}
