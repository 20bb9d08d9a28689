//! Small state beside the message log that is replaced as a whole: claims of journals and generations of agents.

use std::io;
use std::path::PathBuf;
use toolbus_base::{read_private, replace_file};
pub use toolbus_wal::ReplacedFile;

/// A file whose content is replaced atomically.
pub trait StateFile: Send + Sync {
    /// The content, or `None` if there is none yet.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;
    /// Replaces the content durably. Blocks on the disk.
    fn replace(&self, content: &[u8]) -> io::Result<()>;
    /// What messages call it.
    fn name(&self) -> String;
}

/// A file of the data folder.
pub struct FolderFile(pub PathBuf);

impl StateFile for FolderFile {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match read_private(&self.0) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        replace_file(&self.0, content)
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

impl StateFile for ReplacedFile {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        ReplacedFile::read(self)
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        ReplacedFile::replace(self, content)
    }

    fn name(&self) -> String {
        ReplacedFile::name(self).to_owned()
    }
}
