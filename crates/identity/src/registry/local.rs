//! Credentials that a broker creates for its own machine: `local` for users of tools, `host` for the host that offers
//! them, and `operator` for operators of the broker. Read access to the data folder is enough to use them.

use super::edit::{AgentsFolder, NewAgent};
use super::error::RegistryError;
use super::file::{AgentRecord, AgentsFile};
use crate::token;
use jiff::Timestamp;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toolbus_base::{read_private, replace_file};

/// The agent of tool users on the broker's machine.
pub const LOCAL_AGENT: &str = "local";
/// The agent of the host on the broker's machine.
pub const HOST_AGENT: &str = "host";
/// The agent of operators on the broker's machine.
pub const OPERATOR_AGENT: &str = "operator";
/// File in the data folder with the token of [`LOCAL_AGENT`].
pub const LOCAL_TOKEN_FILE: &str = "token";
/// File in the data folder with the token of [`HOST_AGENT`].
pub const HOST_TOKEN_FILE: &str = "host.token";
/// File in the data folder with the token of [`OPERATOR_AGENT`].
pub const OPERATOR_TOKEN_FILE: &str = "operator.token";

/// Paths of the token files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCredentials {
    /// Token file of [`LOCAL_AGENT`].
    pub token: PathBuf,
    /// Token file of [`HOST_AGENT`].
    pub host: PathBuf,
    /// Token file of [`OPERATOR_AGENT`].
    pub operator: PathBuf,
}

/// Creates missing credentials. A revoked agent stays revoked; a token that is lost or no longer valid is replaced.
pub fn ensure_local_credentials(data: &Path) -> Result<LocalCredentials, RegistryError> {
    ensure_all(data, None)
}

/// Like [`ensure_local_credentials`], for a broker that shares its agents with others: their tokens of the same agents stay
/// valid. All brokers give the same time of creation, so that agents which several of them create are the same.
pub fn ensure_credentials_of_member(data: &Path, created: SystemTime) -> Result<LocalCredentials, RegistryError> {
    ensure_all(data, Some(Timestamp::try_from(created).map_err(|_| RegistryError::TooFarAhead)?))
}

/// `shared_since` is the time of creation of shared agents.
fn ensure_all(data: &Path, shared_since: Option<Timestamp>) -> Result<LocalCredentials, RegistryError> {
    let paths = LocalCredentials {
        token: data.join(LOCAL_TOKEN_FILE),
        host: data.join(HOST_TOKEN_FILE),
        operator: data.join(OPERATOR_TOKEN_FILE),
    };
    // The role is named like the agent.
    let agent = |name| NewAgent { name, role: name, ..NewAgent::default() };
    AgentsFolder::new(data).change(|file| {
        ensure(file, &agent(LOCAL_AGENT), &paths.token, shared_since)?;
        ensure(file, &NewAgent { host: true, ..agent(HOST_AGENT) }, &paths.host, shared_since)?;
        ensure(file, &NewAgent { operator: true, ..agent(OPERATOR_AGENT) }, &paths.operator, shared_since)
    })?;
    Ok(paths)
}

/// The path of the token file of a local agent; `None` for other agents.
pub fn local_token_file(data: &Path, name: &str) -> Option<PathBuf> {
    match name {
        LOCAL_AGENT => Some(data.join(LOCAL_TOKEN_FILE)),
        HOST_AGENT => Some(data.join(HOST_TOKEN_FILE)),
        OPERATOR_AGENT => Some(data.join(OPERATOR_TOKEN_FILE)),
        _ => None,
    }
}

fn ensure(
    file: &mut AgentsFile,
    new: &NewAgent<'_>,
    path: &Path,
    shared_since: Option<Timestamp>,
) -> Result<(), RegistryError> {
    let issued = match (file.agent_mut(new.name), shared_since) {
        (Some(agent), _) if agent.revoked.is_some() || has_valid_token(agent, path)? => return Ok(()),
        (Some(_), None) => file.rotate(new.name, Duration::ZERO, None)?,
        (Some(_), Some(_)) => file.add_key(new.name)?,
        (None, None) => file.add(new)?,
        (None, Some(created)) => {
            let issued = file.add(new)?;
            file.require_agent(new.name)?.created = created;
            issued
        }
    };
    let text = format!("{}\n", issued.token.expose());
    replace_file(path, text.as_bytes()).map_err(|source| RegistryError::Write { path: path.to_owned(), source })
}

/// Whether the file contains a valid token of the agent.
fn has_valid_token(agent: &AgentRecord, path: &Path) -> Result<bool, RegistryError> {
    let text = match read_private(path) {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(RegistryError::Read { path: path.to_owned(), source }),
    };
    let Some((id, secret)) = token::parts(text.trim()) else { return Ok(false) };
    let now = Timestamp::now();
    let key = agent.keys.iter().find(|key| key.id == id && key.is_valid_at(now));
    Ok(key.and_then(|key| key.hash()) == Some(token::hash(secret)))
}
