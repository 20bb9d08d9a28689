//! Errors of the registry.

use crate::binding::BadAgentName;
use std::io;
use std::path::PathBuf;
use toolbus_protocol::NameError;

/// Why an operation on the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The content of a file is invalid.
    #[error("{} can't be used: {reason}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the position.
        reason: String,
    },
    /// Another process holds the lock.
    #[error("{} is locked by another process", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The system has no random bytes.
    #[error("can't get random bytes for a token: {0}")]
    Random(String),
    /// The thread that watches the file can't be started.
    #[error("can't start the thread that watches the agents: {0}")]
    Thread(io::Error),
    /// The agent exists already.
    #[error("agent {name:?} exists already")]
    Exists {
        /// The agent.
        name: String,
    },
    /// The agent does not exist.
    #[error("there is no agent {name:?}")]
    Unknown {
        /// The unknown name.
        name: String,
        /// All agents.
        known: Vec<String>,
    },
    /// The agent is revoked.
    #[error("agent {name:?} is revoked")]
    Revoked {
        /// The agent.
        name: String,
    },
    /// The name is not valid for an agent.
    #[error("invalid agent name {name:?}: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why it is invalid.
        reason: BadAgentName,
    },
    /// The name of an agent has a blank.
    #[error("invalid agent name {name:?}: it has a blank")]
    BlankInName {
        /// The name.
        name: String,
    },
    /// The name belongs to an issuer of JWTs or certificates, or looks like one that the broker uses itself.
    #[error("invalid agent name {name:?}: {reason}")]
    ReservedName {
        /// The name.
        name: String,
        /// What it is reserved for.
        reason: &'static str,
    },
    /// The role is not valid.
    #[error("invalid role {role:?}: {reason}")]
    BadRole {
        /// The role.
        role: String,
        /// Why it is invalid.
        reason: NameError,
    },
    /// The follower of the registry could not record a new version.
    #[error("the broker can't record the change of its agents in {}", path.display())]
    NotFollowed {
        /// The registry file.
        path: PathBuf,
    },
    /// A lifetime or overlap ends after the latest representable time.
    #[error("the time is too far in the future")]
    TooFarAhead,
}

impl RegistryError {
    /// How to fix it, if there is a way.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { .. } | Self::Write { .. } => {
                "run the command as the user of the broker, with the broker's --data".into()
            }
            Self::Bad { .. } => {
                "correct the file at that place; until then a running broker keeps the last valid version".into()
            }
            Self::Locked { .. } => "wait until the other command has finished".into(),
            Self::Exists { name } => format!("`toolbus agent rotate {name}` issues a new token for it"),
            Self::Unknown { known, .. } if known.is_empty() => {
                "there are no agents yet; add one with `toolbus agent add`".into()
            }
            Self::Unknown { known, .. } => format!("known agents: {}", known.join(", ")),
            Self::Revoked { name } => {
                format!("`toolbus agent add {name} --role ROLE` adds it again, with a new token")
            }
            Self::BadName { .. } | Self::BadRole { .. } => {
                "use 1 to 256 bytes without control characters, slashes or dot paths".into()
            }
            Self::ReservedName { .. } => "choose another name".into(),
            Self::BlankInName { .. } => "separate words with - or _".into(),
            Self::TooFarAhead => "choose a shorter time".into(),
            Self::Random(_) | Self::Thread(_) | Self::NotFollowed { .. } => return None,
        })
    }
}
