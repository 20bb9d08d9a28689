//! A broker and a host as separate processes in a fresh folder, with credentials for honest and hostile agents.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;
use tokio::process::Command;
use toolbus_client::{AgentRef, BrokerClient, Status};

use super::ways::Role;
use crate::{
    own_broker,
    process::Running,
    tools::{self, Tools},
};

/// Mailbox of the host.
pub const HOST: &str = "host";
pub const LEGACY_SERVER: &str = "legacy";
pub const LEGACY_TOOL: &str = "echo_legacy";
pub const MODERN_TOOL: &str = "echo";
/// Unused sessions at servers end soon, so that what stays behind a hostile agent can be seen soon.
const SESSION_IDLE: &str = "3s";
const COMMAND_LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

pub struct Deployment {
    pub broker: Running,
    pub host: Running,
    /// The broker's URL.
    pub url: String,
    toolbus: PathBuf,
    folder: TempDir,
}

impl Deployment {
    /// Starts broker and host, and makes the credentials of `honest` and `hostile` agents.
    pub async fn start(tools: &Tools, honest: usize, hostile: usize, role: Role) -> anyhow::Result<Self> {
        let toolbus = tools.toolbus()?;
        let folder = own_broker::folder()?;
        let config = folder.path().join("toolbus.toml");
        std::fs::write(&config, configuration(&tools.bench)).context("write the configuration")?;
        let config = config.to_string_lossy().into_owned();
        let (broker, url, _) = own_broker::start_with(folder.path(), &["--config", &config]).await?;
        let mut host = Command::new(&toolbus);
        host.args(["host", "--broker", &url, "--config", &config, "--token-file"]);
        host.arg(folder.path().join("data/host.token")).arg("--state").arg(folder.path().join("host-state"));
        let host = Running::spawn("host", host, folder.path())?;
        let deployment = Self { broker, host, url, toolbus, folder };
        for number in 0..honest {
            deployment.add_agent(&honest_agent(number), "honest").await?;
        }
        for number in 0..hostile {
            deployment.add_agent(&hostile_agent(number), role.name()).await?;
        }
        Ok(deployment)
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn endpoint(&self) -> String {
        self.url.replace("ws://", "http://").replace("/bus", "/mcp")
    }

    pub fn token_file(&self, agent: &str) -> PathBuf {
        self.folder.path().join(format!("{agent}.token"))
    }

    /// The command of an MCP client's configuration.
    pub fn connect(&self, agent: &str) -> Command {
        let mut command = Command::new(&self.toolbus);
        command.args(["connect", "--broker", &self.url, "--token-file"]).arg(self.token_file(agent));
        command
    }

    /// Connections and mailboxes, as the operator sees them.
    pub async fn status(&self) -> anyhow::Result<Status> {
        let token = std::fs::read_to_string(self.folder.path().join("data/operator.token"))?;
        let operator = BrokerClient::connect(&self.url, AgentRef::new("~"), token.trim()).await?;
        let status = operator.status().await.context("ask for the status")?;
        operator.close().await;
        Ok(status)
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        self.host.stop().await?;
        self.broker.stop().await
    }

    async fn add_agent(&self, name: &str, role: &str) -> anyhow::Result<()> {
        let mut add = Command::new(&self.toolbus);
        add.args(["agent", "add", name, "--role", role, "--data"]).arg(self.folder.path().join("data"));
        add.arg("--token-file").arg(self.token_file(name));
        tools::run(add, COMMAND_LIMIT).await.with_context(|| format!("add the agent {name}"))
    }
}

pub fn honest_agent(number: usize) -> String {
    format!("honest-{number}")
}

pub fn hostile_agent(number: usize) -> String {
    format!("hostile-{number}")
}

fn configuration(bench: &Path) -> String {
    format!(
        "[servers.modern]\ncommand = {bench:?}\nargs = [\"mcp-server\"]\n\n\
         [servers.{LEGACY_SERVER}]\ncommand = {bench:?}\n\
         args = [\"mcp-server\", \"--legacy\", \"--tool\", \"{LEGACY_TOOL}\"]\nidle = \"{SESSION_IDLE}\"\n\n\
         [roles.honest]\nallow = [\"*\"]\n\n[roles.{}]\nallow = [\"{LEGACY_TOOL}\"]\n\n[roles.{}]\nallow = []\n",
        Role::OneTool.name(),
        Role::Nothing.name()
    )
}
