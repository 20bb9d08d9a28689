//! What `up` and `host` share: which servers to host, under which name and rules, and the run itself.

use crate::commands::parse_duration;
use crate::config::Config;
use crate::failure::Failure;
use crate::host_state;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolbus_host::{AllowAll, HostOptions, Policy, RoleRules};
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
    /// Folder for what the host keeps: pins, approvals, its audit log. Default: hosts/NAME in the data folder.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How long a server may take to start.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION")]
    start_timeout: std::time::Duration,
}

const DEFAULT_NAME: &str = "host";

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

    /// Opens what the host of that name keeps on disk.
    pub fn open_state(
        &self,
        hosting: &mut Hosting,
        config: &Config,
        data: Option<&Path>,
        name: &str,
    ) -> Result<(), Failure> {
        let folder = match &self.state {
            Some(folder) => folder.clone(),
            None => host_state::folder_of(data, name)?,
        };
        host_state::open(&folder, config, &mut hosting.options)
    }

    /// Hosts what is configured; where that is nothing, the demo server if it is wanted.
    pub fn hosting(&self, config: &Config, or_demo: bool) -> Result<Hosting, Failure> {
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
        let policy: Arc<dyn Policy> = match config.roles.is_empty() {
            true => Arc::new(AllowAll),
            false => Arc::new(RoleRules::new(config.roles.clone())?),
        };
        let named = self.id.clone().or_else(|| config.name.clone());
        let is_named = named.is_some();
        let name = named.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let options = HostOptions { policy, connection, ..HostOptions::new(HostConfig { servers }) };
        Ok(Hosting { name, is_named, options, demo })
    }
}
