//! Finds a server's command as its process would, for a precise error if it is missing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("cwd {} is not a directory; create it, or correct `cwd` in the host's configuration", .0.display())]
    Cwd(PathBuf),
    #[error("command {0:?} not found in the host's PATH; install it, or give its full path as `command`")]
    NotInPath(String),
    #[error("command not found at {}; correct `command` in the host's configuration", .0.display())]
    NoFile(PathBuf),
    #[error("{file} is not executable; run chmod +x {file}", file = .0.display())]
    NotExecutable(PathBuf),
}

pub(crate) fn find(
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
    let directories = env.get(&OsString::from("PATH")).map(std::env::split_paths);
    // A relative entry would find a program in the working folder, which may be another author's.
    let directories = directories.into_iter().flatten().filter(|directory| directory.is_absolute());
    let mut candidates = directories.map(|directory| directory.join(command));
    let found = candidates.find(|path| fs::metadata(path).is_ok_and(|file| is_executable(&file)));
    found.ok_or_else(|| LookupError::NotInPath(command.to_owned()))
}

fn is_executable(file: &fs::Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}
