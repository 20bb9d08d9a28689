//! What can be wrong with the registry or with what is asked of it.

use crate::binding::BadAgentName;
use std::io;
use std::path::PathBuf;
use toolbus_protocol::NameError;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("can't write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} can't be used: {reason}", path.display())]
    Bad { path: PathBuf, reason: String },
    #[error("{} is locked by another process", path.display())]
    Locked { path: PathBuf },
    #[error("no randomness to make a token from: {0}")]
    Random(String),
    #[error("can't start the thread that watches the agents: {0}")]
    Thread(io::Error),
    #[error("there is an agent {name:?} already")]
    Exists { name: String },
    #[error("there is no agent {name:?}")]
    Unknown { name: String, known: Vec<String> },
    #[error("the agent {name:?} was revoked")]
    Revoked { name: String },
    #[error("{name:?} is not usable as the name of an agent: {reason}")]
    BadName { name: String, reason: BadAgentName },
    #[error("{role:?} is not usable as a role: {reason}")]
    BadRole { role: String, reason: NameError },
    #[error("that is further ahead than a time can be")]
    TooFarAhead,
}

impl RegistryError {
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { .. } | Self::Write { .. } => "use the account that the broker runs as, and its --data".into(),
            Self::Bad { .. } => "correct the file at that place; the broker goes on with what it said before".into(),
            Self::Locked { .. } => "wait until the other command has ended".into(),
            Self::Exists { name } => format!("`toolbus agent rotate {name}` makes a new token for it"),
            Self::Unknown { known, .. } if known.is_empty() => {
                "there are none yet; `toolbus agent add` makes one".into()
            }
            Self::Unknown { known, .. } => format!("there is {}", known.join(", ")),
            Self::Revoked { name } => {
                format!("`toolbus agent add {name} --role ROLE` lets it in again, with a new token")
            }
            Self::BadName { .. } | Self::BadRole { .. } => {
                "use 1 to 256 bytes without control characters, slashes or dot paths".into()
            }
            Self::TooFarAhead => "choose a shorter time".into(),
            Self::Random(_) | Self::Thread(_) => return None,
        })
    }
}
