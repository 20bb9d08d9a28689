//! The configuration from toolbus.toml and `--mcp-config`: listen address, servers to host, roles and limits.
//!
//! The file is that of `--config`, else `toolbus.toml` in the working folder, else the one in the user's config folder.
//! The first that exists is used; without any, the defaults apply.

mod error;
mod read;

pub use error::{ConfigFailure, ConfigProblem};

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_identity::{AuthConfig, read_auth};
use toolbus_policy::{PolicySet, Warning};
use toolbus_upstream::{PinMode, ServerConfig, read_mcp_servers_json};

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
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// The roles that the file names.
    pub fn roles(&self) -> Vec<String> {
        read::own_roles(&self.policy)
    }

    /// Reads the configuration file, and adds the servers of an `mcpServers` file.
    pub fn load(explicit: Option<&Path>, mcp_config: Option<&Path>) -> Result<Self, ConfigFailure> {
        let mut config = match explicit.map(Path::to_owned).or_else(default_file) {
            Some(file) => Self::read(&file)?,
            None => Self::default(),
        };
        if let Some(file) = mcp_config {
            config.add_mcp_servers(file)?;
        }
        Ok(config)
    }

    fn read(file: &Path) -> Result<Self, ConfigFailure> {
        let text = read_file(file)?;
        let mut config = read::read(&text, &environment).map_err(|problem| problem.in_file(file))?;
        config.data = config.data.map(|data| beside(file, &data));
        config.shared_token_file = config.shared_token_file.map(|token| beside(file, &token));
        config.auth = auth_of(file, &text)?;
        config.warnings.iter_mut().for_each(|warning| *warning = format!("{}: {warning}", file.display()));
        config.file = Some(file.to_owned());
        Ok(config)
    }

    fn add_mcp_servers(&mut self, file: &Path) -> Result<(), ConfigFailure> {
        let text = read_file(file)?;
        let read =
            read_mcp_servers_json(&text, &environment).map_err(|error| ConfigProblem::Servers(error).in_file(file))?;
        for server in read.servers {
            if self.servers.iter().any(|known| known.name == server.name) {
                let first = self.file.clone().unwrap_or_else(|| file.to_owned());
                return Err(ConfigProblem::InBothFiles { server: server.name, first }.in_file(file));
            }
            self.servers.push(server);
        }
        self.warnings.extend(read.warnings.into_iter().map(|warning| format!("{}: {warning}", file.display())));
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
    /// Names of the roles that have rules.
    pub roles: Vec<String>,
    /// Names of the servers.
    pub servers: Vec<String>,
    /// Rules for plain messages.
    pub policy: PolicySet,
    /// The file itself, if it was read to start a broker.
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

impl LocalBroker {
    /// Loads the settings of a broker without a host. Only the keys that concern the broker are checked.
    pub fn load(explicit: Option<&Path>) -> Result<Self, ConfigFailure> {
        let Some(file) = explicit.map(Path::to_owned).or_else(default_file) else { return Ok(Self::default()) };
        let text = read_file(&file)?;
        let mut local = read::read_broker(&text).map_err(|problem| problem.in_file(&file))?;
        local.auth = auth_of(&file, &text)?;
        local.warnings.iter_mut().for_each(|warning| *warning = format!("{}: {warning}", file.display()));
        local.file = Some(file.clone());
        Ok(local.beside(&file))
    }

    fn beside(mut self, file: &Path) -> Self {
        self.data = self.data.map(|data| beside(file, &data));
        self.shared_token_file = self.shared_token_file.map(|token| beside(file, &token));
        self
    }
}

/// Resolves a path relative to the file, so that it does not depend on the working folder.
fn beside(file: &Path, path: &Path) -> PathBuf {
    file.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
}

fn auth_of(file: &Path, text: &str) -> Result<AuthConfig, ConfigFailure> {
    let folder = file.parent().unwrap_or(Path::new("."));
    read_auth(text, folder).map_err(|error| ConfigProblem::Auth(error).in_file(file))
}

/// The broker of this configuration, for commands that connect to it or manage its agents. Errors in other parts of the
/// file are ignored. A file that can't be read or parsed is an error: with the defaults the command would address
/// another broker and could change that one's agents.
pub fn local_broker() -> Result<LocalBroker, ConfigFailure> {
    let explicit = env::var_os("TOOLBUS_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = explicit.or_else(default_file) else { return Ok(LocalBroker::default()) };
    let local = read::read_local(&read_file(&file)?).map_err(|problem| problem.in_file(&file))?;
    Ok(local.beside(&file))
}

/// The rules alone, for `toolbus policy check`.
pub struct Rules {
    pub file: Option<PathBuf>,
    pub policy: PolicySet,
    pub warnings: Vec<Warning>,
    /// Names of the servers.
    pub servers: Vec<String>,
}

impl Rules {
    /// Loads the rules. Variables need not be set, and the servers' settings are not checked.
    pub fn load(explicit: Option<&Path>) -> Result<Self, ConfigFailure> {
        let Some(file) = explicit.map(Path::to_owned).or_else(default_file) else {
            return Ok(Self { file: None, policy: PolicySet::built_in(), warnings: Vec::new(), servers: Vec::new() });
        };
        let text = read_file(&file)?;
        read::read_broker(&text).map_err(|problem| problem.in_file(&file))?;
        let read = PolicySet::read(&text).map_err(|error| ConfigProblem::Policy(error).in_file(&file));
        let (policy, warnings) = read?;
        let servers = read::read_local(&text).unwrap_or_default().servers;
        Ok(Self { file: Some(file), policy, warnings, servers })
    }
}

/// The toolbus.toml in the working folder or in the user's config folder.
pub fn default_file() -> Option<PathBuf> {
    let here = PathBuf::from(FILE_NAME);
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let users = home.map(|folder| folder.join("toolbus").join(FILE_NAME));
    std::iter::once(here).chain(users).find(|file| file.is_file())
}

fn read_file(file: &Path) -> Result<String, ConfigFailure> {
    std::fs::read_to_string(file).map_err(|source| ConfigProblem::Unreadable(source).in_file(file))
}

fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}
