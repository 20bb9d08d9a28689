//! Options shared by `up` and `host`: which servers to host, under which name, and with which rules.

use crate::commands::parse_duration;
use crate::config::{Asking, Config, ConfigFailure, ConfigFile};
use crate::failure::Failure;
use crate::host_state::StateFolder;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_base::Backoff;
use toolbus_host::{HostLimits, HostOptions, LivePolicy};
use toolbus_policy::PolicySet;
use toolbus_upstream::{ConnectionOptions, GuardCommand, HostConfig, ServerConfig};

#[derive(Args)]
pub struct HostingArgs {
    /// The toolbus.toml to read. Default: toolbus.toml in the working folder, or in ~/.config/toolbus.
    #[arg(long, env = "TOOLBUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also host the servers of this file: the configuration of any MCP client, unchanged (JSON, TOML or YAML).
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,
    /// The host's name on the bus. Default: `name` in toolbus.toml, or the name of its credential, or "host".
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Join this pool: its hosts serve the same servers as one. `pool = "NAME"` in [hosts.NAME] of the broker's toolbus.toml has
    /// to allow it.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Folder for the host's state: pins, approvals, audit log and call journal. Default: hosts/NAME in the data
    /// folder.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How long a server may take to start. Default: 30s, or 5m if a package runner such as npx, uvx or docker run starts
    /// it, which may have to download it first. `start_timeout` of a server comes first.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    start_timeout: Option<Duration>,
    /// At SIGTERM, how long running calls may take to end. Calls that were not started stay in the mailbox for the next start.
    #[arg(long, value_parser = parse_duration, default_value = "10s", value_name = "DURATION")]
    pub drain: Duration,
}

const DEFAULT_NAME: &str = "host";

/// Where identities come from. It decides which rules apply if the file has no roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identities {
    /// Names and roles are the peers' own claims: without roles in the file, every role may use everything.
    SharedToken,
    /// Each agent has its own credential: without roles in the file, the built-in roles apply.
    Credentials,
}

impl Identities {
    pub fn policy(self, read: PolicySet) -> PolicySet {
        match self {
            Self::SharedToken => read.for_shared_token(),
            Self::Credentials => read,
        }
    }
}

/// The host to run.
pub struct Hosting {
    pub name: String,
    /// Whether the name was configured; otherwise it is the default.
    pub is_named: bool,
    pub options: HostOptions,
    /// Whether the demo server is hosted because no other is configured.
    pub demo: bool,
    /// The toolbus.toml that was read.
    pub config_file: Option<PathBuf>,
}

impl Hosting {
    /// The servers that are hosted, which disabled ones are not.
    pub fn server_names(&self) -> String {
        let servers = &self.options.config.servers;
        let names: Vec<&str> =
            servers.iter().filter(|server| !server.disabled).map(|server| server.name.as_str()).collect();
        if names.is_empty() { "no servers: all of them are disabled".to_owned() } else { names.join(", ") }
    }
}

impl HostingArgs {
    pub fn load(&self) -> Result<Config, Failure> {
        let config = Config::load(self.config.as_deref(), self.mcp_config.as_deref(), Asking::AtTerminal)?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// The folder of the host's persistent state.
    pub fn state_folder(&self, config: &Config) -> StateFolder {
        let (state, file, journal) = (self.state.clone(), config.file.clone(), config.journal.clone());
        StateFolder { state, config: file, pin: config.pin, journal, ship_audit: config.ship_audit.clone() }
    }

    /// Reads the file of the start again. If it is missing, no other file replaces it.
    pub fn read_again(&self, file: &ConfigFile) -> Result<Config, ConfigFailure> {
        Config::load_from(Some(file.clone()), self.mcp_config.as_deref(), Asking::Never)
    }

    /// Builds the host of the configured servers, or of the demo server if there are none and `or_demo` is set.
    pub fn hosting(&self, config: &Config, mode: Identities, or_demo: bool) -> Result<Hosting, Failure> {
        let mut servers = config.servers.clone();
        let demo = servers.is_empty() && or_demo;
        let me = std::env::current_exe().map_err(Failure::Runtime)?;
        if demo {
            servers.push(ServerConfig::stdio(toolbus_demo::NAME, me.to_string_lossy(), &["demo-server"]));
        }
        if servers.is_empty() {
            return Err(Failure::NoServers);
        }
        let guard = GuardCommand { program: me, args: vec![OsString::from("guard")] };
        let defaults = ConnectionOptions::default();
        let connection = ConnectionOptions {
            guard: Some(guard),
            start_timeout: self.start_timeout.unwrap_or(defaults.start_timeout),
            download_timeout: self.start_timeout.unwrap_or(defaults.download_timeout),
            ..defaults
        };
        let policy = LivePolicy::new(mode.policy(config.policy.clone()));
        let named = self.id.clone().or_else(|| config.name.clone());
        let is_named = named.is_some();
        let name = named.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let limits = HostLimits { caller_grace: config.caller_grace, drain: self.drain, ..HostLimits::default() };
        let pool = self.pool.clone();
        let options = HostOptions { policy, connection, limits, pool, ..HostOptions::new(HostConfig { servers }) };
        Ok(Hosting { name, is_named, options, demo, config_file: config.file.as_ref().map(|file| file.path.clone()) })
    }
}

/// The backoff of a host that lost its broker or its mailbox.
pub fn reconnect_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(500), Duration::from_secs(30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_roles_only_a_shared_token_allows_everything() {
        let (none, _) = PolicySet::read("").expect("rules");
        assert!(Identities::SharedToken.policy(none.clone()).is_everyone());
        assert!(!Identities::Credentials.policy(none).is_everyone());
        let (some, _) = PolicySet::read("[roles.a]\nallow = ['x']").expect("rules");
        assert!(!Identities::SharedToken.policy(some).is_everyone());
    }
}
