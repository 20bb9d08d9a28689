//! What `up` and `host` share: which servers to host, under which name and rules, and the run itself.

use crate::commands::parse_duration;
use crate::config::{Config, ConfigFailure};
use crate::failure::Failure;
use crate::host_state::StatePlace;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toolbus_host::{HostLimits, HostOptions, LivePolicy};
use toolbus_policy::PolicySet;
use toolbus_upstream::{ConnectionOptions, GuardCommand, HostConfig, ServerConfig};

#[derive(Args)]
pub struct HostingArgs {
    /// The toolbus.toml to read. Default: toolbus.toml in this folder, or in ~/.config/toolbus.
    #[arg(long, env = "TOOLBUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Host the servers of this file too: the `mcpServers` JSON of any MCP client, as it is.
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,
    /// The host's name on the bus. Default: `name` in toolbus.toml, or that of its credential, or "host".
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Folder for what the host keeps: pins, approvals, its audit log and call journal. Default: hosts/NAME in the data folder.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How long a server may take to start.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    start_timeout: std::time::Duration,
}

const DEFAULT_NAME: &str = "host";

/// Where identities come from, and with them what counts where the file names no roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identities {
    /// Names and roles are what peers say: everybody may use everything.
    SharedToken,
    /// Each agent has its own: the built-in roles count.
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

/// What is to be hosted.
pub struct Hosting {
    pub name: String,
    /// Whether somebody chose the name.
    pub is_named: bool,
    pub options: HostOptions,
    /// Whether it is the demo server, for want of others.
    pub demo: bool,
}

impl Hosting {
    pub fn server_names(&self) -> String {
        let names: Vec<&str> = self.options.config.servers.iter().map(|server| server.name.as_str()).collect();
        names.join(", ")
    }
}

impl HostingArgs {
    pub fn load(&self) -> Result<Config, Failure> {
        let config = Config::load(self.config.as_deref(), self.mcp_config.as_deref())?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// Where the host keeps what has to outlive it.
    pub fn state_place(&self, config: &Config) -> StatePlace {
        let (state, file, journal) = (self.state.clone(), config.file.clone(), config.journal.clone());
        StatePlace { state, config: file, pin: config.pin, journal }
    }

    /// The file that was read at the start, and no other: where it is gone, another must not take its place.
    pub fn read_again(&self, file: &Path) -> Result<Config, ConfigFailure> {
        Config::load(Some(file), self.mcp_config.as_deref())
    }

    /// Hosts what is configured; where that is nothing, the demo server if it is wanted.
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
        let connection =
            ConnectionOptions { guard: Some(guard), start_timeout: self.start_timeout, ..ConnectionOptions::default() };
        let policy = LivePolicy::new(mode.policy(config.policy.clone()));
        let named = self.id.clone().or_else(|| config.name.clone());
        let is_named = named.is_some();
        let name = named.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let limits = HostLimits { caller_grace: config.caller_grace, ..HostLimits::default() };
        let options = HostOptions { policy, connection, limits, ..HostOptions::new(HostConfig { servers }) };
        Ok(Hosting { name, is_named, options, demo })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_without_roles_depends_on_where_identities_come_from() {
        let (none, _) = PolicySet::read("").expect("rules");
        assert!(Identities::SharedToken.policy(none.clone()).is_everyone());
        assert!(!Identities::Credentials.policy(none).is_everyone());
        let (some, _) = PolicySet::read("[roles.a]\nallow = ['x']").expect("rules");
        assert!(!Identities::SharedToken.policy(some).is_everyone());
    }
}
