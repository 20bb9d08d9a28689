//! The configuration from toolbus.toml and `--mcp-config`: listen address, servers to host, roles and limits.
//!
//! The file is that of `--config`, else `toolbus.toml` in the working folder, else the one in the user's config folder.
//! The first that exists is used; without any, the defaults apply.

mod error;
mod inputs;
mod read;

pub use error::ConfigFailure;
use error::ConfigProblem;
pub use inputs::Asking;

use crate::folders;
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_base::check_trusted;
use toolbus_config::{Document, Warning};
use toolbus_identity::AuthConfig;
use toolbus_policy::PolicySet;
use toolbus_ship::Target;
use toolbus_upstream::{PinMode, ServerConfig, Surroundings, read_mcp_servers};

pub const FILE_NAME: &str = "toolbus.toml";

/// The file that `toolbus init` writes.
pub const TEMPLATE: &str = include_str!("template.toml");

#[derive(Debug)]
pub struct Config {
    /// The toolbus.toml that was read, if any.
    pub file: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    pub data: Option<PathBuf>,
    /// File of the token that all agents share.
    pub shared_token_file: Option<PathBuf>,
    /// JWT issuers and client certificates that are accepted beside the broker's own tokens.
    pub auth: AuthConfig,
    /// The host's name on the bus.
    pub name: Option<String>,
    /// In file order; those of toolbus.toml come first.
    pub servers: Vec<ServerConfig>,
    /// Roles and limits of the file, or the built-in roles if it has none.
    pub policy: PolicySet,
    /// Which tool definitions count as approved.
    pub pin: PinMode,
    /// How long a call keeps running after its caller disconnected. `None`: until its deadline.
    pub caller_grace: Option<Duration>,
    pub journal: JournalSettings,
    /// Where lines of the audit logs are copied to.
    pub ship_audit: Option<Target>,
    /// Problems that are not fatal, as text for the log.
    pub warnings: Vec<String>,
}

/// Retention and durability of the host's call journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSettings {
    pub keep: Duration,
    pub max_size: u64,
    /// Whether a result is synced to disk before it is sent to the caller.
    pub sync_results: bool,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { keep: Duration::from_secs(24 * 3600), max_size: 1 << 30, sync_results: false }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            file: None,
            listen: None,
            data: None,
            shared_token_file: None,
            auth: AuthConfig::default(),
            name: None,
            servers: Vec::new(),
            policy: PolicySet::default(),
            pin: PinMode::default(),
            caller_grace: Some(Duration::from_secs(120)),
            journal: JournalSettings::default(),
            ship_audit: None,
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// The roles that the file names.
    pub fn roles(&self) -> Vec<String> {
        self.policy.named_roles().map(str::to_owned).collect()
    }

    /// Reads the configuration file, and adds the servers of the file of an MCP client.
    pub fn load(explicit: Option<&Path>, mcp_config: Option<&Path>, asking: Asking) -> Result<Self, ConfigFailure> {
        let mut config = match explicit.map_or_else(default_file, |file| Ok(Some(file.to_owned())))? {
            Some(file) => Self::read(&file)?,
            None => Self::default(),
        };
        if let Some(file) = mcp_config {
            config.add_mcp_servers(file, asking)?;
        }
        Ok(config)
    }

    fn read(file: &Path) -> Result<Self, ConfigFailure> {
        let document = Document::parse_toml(&read_file(file)?).map_err(|error| ConfigFailure::new(file, error))?;
        read::read(&document, file, &environment).map_err(|error| ConfigFailure::new(file, error))
    }

    fn add_mcp_servers(&mut self, file: &Path, asking: Asking) -> Result<(), ConfigFailure> {
        let around = Surroundings {
            file,
            env: &environment,
            read: &|path| std::fs::read_to_string(path),
            ask: &|input| asking.ask(input),
        };
        let read = read_mcp_servers(&read_file(file)?, &around).map_err(|error| ConfigFailure::new(file, error))?;
        for server in read.servers {
            if self.servers.iter().any(|known| known.name == server.name) {
                let first = self.file.clone().unwrap_or_else(|| file.to_owned());
                return Err(ConfigFailure::new(file, ConfigProblem::InBothFiles { server: server.name, first }));
            }
            self.servers.push(server);
        }
        self.warnings.extend(in_file(file, &read.warnings));
        self.warnings.extend(read.unusable.iter().map(|unusable| {
            let (name, error) = (&unusable.name, &unusable.error);
            format!("{}: {error}; server {name:?} is not hosted. hint: {}", file.display(), error.hint())
        }));
        Ok(())
    }
}

/// The settings of the broker in this configuration: address, data folder, credentials and rules for messages.
#[derive(Debug, Default)]
pub struct LocalBroker {
    pub listen: Option<SocketAddr>,
    pub data: Option<PathBuf>,
    pub shared_token_file: Option<PathBuf>,
    pub auth: AuthConfig,
    /// Where lines of the audit log are copied to.
    pub ship_audit: Option<Target>,
    /// Names of the roles that have rules.
    pub roles: Vec<String>,
    /// Names of the servers.
    pub servers: Vec<String>,
    /// Rules for plain messages.
    pub policy: PolicySet,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

impl LocalBroker {
    /// Loads the settings of a broker without a host. Only the keys that concern the broker are checked: variables need
    /// not be set.
    pub fn load(explicit: Option<&Path>) -> Result<Self, ConfigFailure> {
        let file = explicit.map_or_else(default_file, |file| Ok(Some(file.to_owned())))?;
        let Some(file) = file else { return Ok(Self::default()) };
        let document = Document::parse_toml(&read_file(&file)?);
        let read = document.and_then(|document| read::read_broker(&document, &file));
        read.map_err(|error| ConfigFailure::new(&file, error))
    }
}

/// The broker of this configuration, for commands that connect to it or manage its agents. Errors in other parts of the
/// file are ignored. A file that can't be read or parsed is an error: with the defaults the command would address
/// another broker and could change that one's agents.
pub fn local_broker() -> Result<LocalBroker, ConfigFailure> {
    let explicit = env::var_os("TOOLBUS_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = explicit.map_or_else(default_file, |file| Ok(Some(file)))? else {
        return Ok(LocalBroker::default());
    };
    let document = Document::parse_toml(&read_file(&file)?).map_err(|error| ConfigFailure::new(&file, error))?;
    Ok(read::read_local(&document, &file))
}

/// The toolbus.toml in the working folder or in the user's config folder. No option gives its path, so it must not be a file that
/// another user put there: it decides which programs run, and which broker is used.
pub fn default_file() -> Result<Option<PathBuf>, ConfigFailure> {
    let users = folders::users_config_folder().map(|folder| folder.join("toolbus").join(FILE_NAME));
    let Some(file) = std::iter::once(PathBuf::from(FILE_NAME)).chain(users).find(|file| file.is_file()) else {
        return Ok(None);
    };
    match check_trusted(&file) {
        Ok(_) => Ok(Some(file)),
        Err(error) => Err(ConfigFailure::new(&file, ConfigProblem::of(error))),
    }
}

fn read_file(file: &Path) -> Result<String, ConfigFailure> {
    std::fs::read_to_string(file).map_err(|source| ConfigFailure::new(file, ConfigProblem::Unreadable(source)))
}

fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn in_file(file: &Path, warnings: &[Warning]) -> impl Iterator<Item = String> {
    warnings.iter().map(move |warning| format!("{}: {warning}", file.display()))
}
