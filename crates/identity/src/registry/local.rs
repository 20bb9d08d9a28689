//! The credentials that a broker makes for its own machine: `local`, for those who use tools, `host`, for the one that
//! offers them, and `operator`, for those who look after the broker. Whoever can read the data folder can use them.

use super::edit::{AgentsFolder, NewAgent};
use super::error::RegistryError;
use super::file::{AgentRecord, AgentsFile};
use crate::files::write_private;
use crate::token;
use jiff::Timestamp;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const LOCAL_AGENT: &str = "local";
pub const HOST_AGENT: &str = "host";
pub const OPERATOR_AGENT: &str = "operator";
pub const LOCAL_TOKEN_FILE: &str = "token";
pub const HOST_TOKEN_FILE: &str = "host.token";
pub const OPERATOR_TOKEN_FILE: &str = "operator.token";

/// Where the tokens are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCredentials {
    pub token: PathBuf,
    pub host: PathBuf,
    pub operator: PathBuf,
}

/// Makes what is missing. An agent that was revoked stays revoked; a token that is lost, or no longer counts, is replaced.
pub fn ensure_local_credentials(data: &Path) -> Result<LocalCredentials, RegistryError> {
    let paths = LocalCredentials {
        token: data.join(LOCAL_TOKEN_FILE),
        host: data.join(HOST_TOKEN_FILE),
        operator: data.join(OPERATOR_TOKEN_FILE),
    };
    // The role has the agent's name.
    let agent = |name| NewAgent { name, role: name, ..NewAgent::default() };
    AgentsFolder::new(data).change(|file| {
        ensure(file, &agent(LOCAL_AGENT), &paths.token)?;
        ensure(file, &NewAgent { host: true, ..agent(HOST_AGENT) }, &paths.host)?;
        ensure(file, &NewAgent { operator: true, ..agent(OPERATOR_AGENT) }, &paths.operator)
    })?;
    Ok(paths)
}

/// Where commands on the broker's machine look for the token of that agent, if it is one of these.
pub fn local_token_file(data: &Path, name: &str) -> Option<PathBuf> {
    match name {
        LOCAL_AGENT => Some(data.join(LOCAL_TOKEN_FILE)),
        HOST_AGENT => Some(data.join(HOST_TOKEN_FILE)),
        OPERATOR_AGENT => Some(data.join(OPERATOR_TOKEN_FILE)),
        _ => None,
    }
}

fn ensure(file: &mut AgentsFile, new: &NewAgent<'_>, path: &Path) -> Result<(), RegistryError> {
    let issued = match file.agent_mut(new.name) {
        None => file.add(new)?,
        Some(agent) if agent.revoked.is_some() || holds_key_of(agent, path)? => return Ok(()),
        Some(_) => file.rotate(new.name, Duration::ZERO, None)?,
    };
    let text = format!("{}\n", issued.token.expose());
    write_private(path, text.as_bytes()).map_err(|source| RegistryError::Write { path: path.to_owned(), source })
}

/// Whether the token in that file lets the agent in.
fn holds_key_of(agent: &AgentRecord, path: &Path) -> Result<bool, RegistryError> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(RegistryError::Read { path: path.to_owned(), source }),
    };
    let Some((id, secret)) = token::parts(text.trim()) else { return Ok(false) };
    let now = Timestamp::now();
    let key = agent.keys.iter().find(|key| key.id == id && key.is_valid_at(now));
    Ok(key.and_then(|key| key.hash()) == Some(token::hash(secret)))
}
