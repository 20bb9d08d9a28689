//! The configuration from toolbus.toml and `--mcp-config`: listen address, servers to host, roles and limits.
//!
//! The file is that of `--config`, else `toolbus.toml` in the working folder, else the one in the user's config folder.
//! The first that exists is used; without any, the defaults apply.

mod error;
mod file;
mod inputs;
mod read;

pub use error::ConfigFailure;
use error::ConfigProblem;
pub use file::ConfigFile;
pub use inputs::Asking;

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_base::Trust;
use toolbus_config::Warning;
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
    pub file: Option<ConfigFile>,
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
        Self::load_from(ConfigFile::locate(explicit)?, mcp_config, asking)
    }

    /// Reads this configuration file, and adds the servers of the file of an MCP client.
    pub fn load_from(
        file: Option<ConfigFile>,
        mcp_config: Option<&Path>,
        asking: Asking,
    ) -> Result<Self, ConfigFailure> {
        let mut config = file.map_or_else(|| Ok(Self::default()), Self::read)?;
        if let Some(file) = mcp_config {
            config.add_mcp_servers(file, asking)?;
        }
        Ok(config)
    }

    fn read(file: ConfigFile) -> Result<Self, ConfigFailure> {
        let read = read::read(&file.document()?, &file.path, &environment);
        let read = read.map_err(|error| ConfigFailure::new(&file.path, error))?;
        Ok(Self { file: Some(file), ..read })
    }

    fn add_mcp_servers(&mut self, file: &Path, asking: Asking) -> Result<(), ConfigFailure> {
        let around = Surroundings {
            file,
            env: &environment,
            read: &|path| Trust::in_owner_of(file).read_text(path),
            ask: &|input| asking.ask(input),
        };
        let read = read_mcp_servers(&ConfigFile::named(file).text()?, &around)
            .map_err(|error| ConfigFailure::new(file, error))?;
        for server in read.servers {
            if self.servers.iter().any(|known| known.name == server.name) {
                let first = self.file.as_ref().map_or(file, |known| &known.path).to_owned();
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
    pub file: Option<ConfigFile>,
    pub warnings: Vec<String>,
}

impl LocalBroker {
    /// Loads the settings of a broker without a host. Only the keys that concern the broker are checked: variables need
    /// not be set.
    pub fn load(explicit: Option<&Path>) -> Result<Self, ConfigFailure> {
        ConfigFile::locate(explicit)?.map_or_else(|| Ok(Self::default()), Self::load_from)
    }

    /// Loads the settings from this file.
    pub fn load_from(file: ConfigFile) -> Result<Self, ConfigFailure> {
        let read = read::read_broker(&file.document()?, &file.path);
        let read = read.map_err(|error| ConfigFailure::new(&file.path, error))?;
        Ok(Self { file: Some(file), ..read })
    }
}

/// The broker of this configuration, for commands that connect to it or manage its agents. Errors in other parts of the
/// file are ignored. A file that can't be read or parsed is an error: with the defaults the command would address
/// another broker and could change that one's agents.
pub fn local_broker() -> Result<LocalBroker, ConfigFailure> {
    let explicit = env::var_os("TOOLBUS_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = ConfigFile::locate(explicit.as_deref())? else { return Ok(LocalBroker::default()) };
    Ok(read::read_local(&file.document()?, &file.path))
}

fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn in_file(file: &Path, warnings: &[Warning]) -> impl Iterator<Item = String> {
    warnings.iter().map(move |warning| format!("{}: {warning}", file.display()))
}
