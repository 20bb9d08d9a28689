//! A toolbus.toml, and whether the user named it. A file that was found decides which programs run and which broker is used
//! although no option gives its path, so it is read only if no other user could have written it. This holds for every
//! reading, also when it has changed.

use super::FILE_NAME;
use super::error::{ConfigFailure, ConfigProblem};
use crate::folders;
use std::path::{Path, PathBuf};
use toolbus_base::{Trust, check_trusted, read_trusted_text};
use toolbus_config::Document;
use toolbus_host::pins::LOCK_FILE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: PathBuf,
    is_named: bool,
}

impl ConfigFile {
    /// A file that an option or variable gives, which is used regardless of its owner.
    pub fn named(path: &Path) -> Self {
        Self { path: path.to_owned(), is_named: true }
    }

    /// The given file, or else the toolbus.toml in the working folder or in the user's config folder.
    pub fn locate(explicit: Option<&Path>) -> Result<Option<Self>, ConfigFailure> {
        explicit.map_or_else(Self::found, |path| Ok(Some(Self::named(path))))
    }

    /// The toolbus.toml in the working folder or in the user's config folder.
    pub fn found() -> Result<Option<Self>, ConfigFailure> {
        let users = folders::users_config_folder().map(|folder| folder.join("toolbus").join(FILE_NAME));
        let mut places = std::iter::once(PathBuf::from(FILE_NAME)).chain(users);
        let Some(path) = places.find(|path| path.is_file()) else { return Ok(None) };
        check_trusted(&path).map_err(|error| ConfigFailure::new(&path, ConfigProblem::of(error)))?;
        Ok(Some(Self { path, is_named: false }))
    }

    pub fn text(&self) -> Result<String, ConfigFailure> {
        let read = if self.is_named { std::fs::read_to_string(&self.path) } else { read_trusted_text(&self.path) };
        read.map_err(|error| ConfigFailure::new(&self.path, ConfigProblem::of(error)))
    }

    pub fn document(&self) -> Result<Document, ConfigFailure> {
        Document::parse_toml(&self.text()?).map_err(|error| ConfigFailure::new(&self.path, error))
    }

    /// The lock file beside it.
    pub fn lock_file(&self) -> PathBuf {
        self.path.with_file_name(LOCK_FILE)
    }

    /// Whose files are trusted beside it.
    pub fn trust_beside(&self) -> Trust {
        if self.is_named { Trust::in_owner_of(&self.path) } else { Trust::default() }
    }
}
