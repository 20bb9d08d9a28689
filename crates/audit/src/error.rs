//! Why the audit log can't be used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone, thiserror::Error)]
pub enum AuditError {
    #[error("can't {what} {}: {source}", file.display())]
    Io { what: &'static str, file: PathBuf, source: Arc<io::Error> },
    #[error("another process writes to the audit log in {}", folder.display())]
    Locked { folder: PathBuf },
    #[error("the audit log is not what was written, so it is not continued: {place}: {what}")]
    Damaged { place: String, what: String },
    /// An earlier write failed, and nothing can be written behind it.
    #[error("the audit log has failed: {0}")]
    Failed(String),
    #[error("the audit log is closed")]
    Closed,
}

impl AuditError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Failed(_) => "look at the disk: space, rights, and whether it is sound",
            Self::Locked { .. } => "run one process per folder",
            Self::Damaged { .. } => {
                "`toolbus audit verify` says more; keep the folder as evidence under another name, and start again"
            }
            Self::Closed => "the process is stopping",
        }
    }

    pub(crate) fn io(what: &'static str, file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| Self::Io { what, file, source: Arc::new(source) }
    }
}
