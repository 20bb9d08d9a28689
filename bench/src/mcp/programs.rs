//! The programs on the measured paths: installs the other proxies at pinned versions, and makes their command lines.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use tokio::process::Command;

use super::paths;
use crate::tools::{existing, run};

const INSTALL_LIMIT: Duration = Duration::from_secs(8 * 60);
const NPM: [&str; 3] = ["supergateway@4.0.0", "mcp-remote@0.15.1", "mcp-proxy@6.7.19"];
const NODE: &str = "node@24";
const FASTMCP: &str = "fastmcp==4.1.2";
const PYPI_MCP_PROXY: &str = "mcp-proxy==0.13.0";

pub struct Programs {
    pub toolbus: PathBuf,
    /// Log of valgrind, if it counts the instructions of `up`.
    counted_into: Option<PathBuf>,
    bench: PathBuf,
    folder: PathBuf,
}

impl Programs {
    pub fn new(toolbus: PathBuf, bench: PathBuf, out: &Path) -> Self {
        Self { toolbus, counted_into: None, bench, folder: out.join("tools/mcp") }
    }

    /// The same programs, with `up` under valgrind.
    pub fn counted_into(&self, log: &Path) -> Self {
        let Self { toolbus, bench, folder, .. } = self;
        Self {
            toolbus: toolbus.clone(),
            counted_into: Some(log.to_owned()),
            bench: bench.clone(),
            folder: folder.clone(),
        }
    }

    /// The command `toolbus up`, without options.
    pub fn up(&self) -> Command {
        let mut command = match &self.counted_into {
            Some(log) => {
                // On a single processor `up` does not poll for events; how often it polls depends on the machine.
                let mut valgrind = Command::new("taskset");
                valgrind.args(["--cpu-list", &first_processor(), "valgrind"]);
                let log = format!("--log-file={}", log.display());
                valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &log]).arg(&self.toolbus);
                valgrind
            }
            None => Command::new(&self.toolbus),
        };
        command.arg("up");
        command
    }

    /// Installs the programs of a path unless they are installed already.
    pub async fn prepare(&self, path: paths::Path) -> anyhow::Result<()> {
        match path {
            paths::Path::Supergateway | paths::Path::McpRemote | paths::Path::NpmMcpProxy => self.npm().await,
            paths::Path::FastMcp => self.python("fastmcp", FASTMCP).await,
            paths::Path::PypiMcpProxy => self.python("mcp-proxy", PYPI_MCP_PROXY).await,
            _ => Ok(()),
        }
    }

    pub fn server(&self) -> Vec<String> {
        vec![text(&self.bench), "mcp-server".into()]
    }

    pub fn relay(&self, options: &[&str]) -> Vec<String> {
        let command = [text(&self.bench), "mcp-relay".into()];
        command.into_iter().chain(options.iter().map(ToString::to_string)).collect()
    }

    pub fn supergateway(&self, server: &[String], port: u16) -> (Vec<String>, u16) {
        let options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port"];
        let mut argv = vec![self.node(), self.module("supergateway/dist/index.js"), "--stdio".into(), server.join(" ")];
        argv.extend(options.map(String::from));
        argv.push(port.to_string());
        (argv, port)
    }

    pub fn mcp_remote(&self, port: u16) -> Vec<String> {
        let url = format!("http://127.0.0.1:{port}/mcp");
        let program = self.module("mcp-remote/dist/proxy.js");
        vec![self.node(), program, url, "--transport".into(), "http-only".into(), "--allow-http".into()]
    }

    pub fn npm_mcp_proxy(&self, server: &[String], port: u16) -> (Vec<String>, u16) {
        let program = self.module("mcp-proxy/dist/bin/mcp-proxy.mjs");
        let mut argv = vec![self.node(), program, "--port".into(), port.to_string(), "--".into()];
        argv.extend(server.iter().cloned());
        (argv, port)
    }

    pub fn pypi_mcp_proxy(&self, server: &[String], port: u16) -> (Vec<String>, u16) {
        let program = text(&self.folder.join("mcp-proxy/bin/mcp-proxy"));
        let mut argv = vec![program, "--port".into(), port.to_string(), "--".into()];
        argv.extend(server.iter().cloned());
        (argv, port)
    }

    /// A minimal proxy script, as the documentation shows it.
    pub fn fastmcp(&self, server: &[String], folder: &Path) -> anyhow::Result<Vec<String>> {
        let (program, args) = server.split_first().context("a server has a program")?;
        let config = serde_json::json!({"mcpServers": {"echo": {"command": program, "args": args}}});
        let script = folder.join("fastmcp_proxy.py");
        let source = format!(
            "from fastmcp.server import create_proxy\n\
             create_proxy({config}, name='proxy').run(transport='stdio', show_banner=False)\n"
        );
        std::fs::write(&script, source).context("write the proxy")?;
        Ok(vec![text(&self.folder.join("fastmcp/bin/python")), text(&script)])
    }

    async fn npm(&self) -> anyhow::Result<()> {
        let folder = self.folder.join("npm");
        if folder.join("installed").exists() {
            return Ok(());
        }
        std::fs::create_dir_all(&folder).context("make the folder for npm packages")?;
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"]).arg(&folder);
        install.arg(NODE).args(NPM);
        run(install, INSTALL_LIMIT).await.context("install npm packages")?;
        std::fs::write(folder.join("installed"), "").context("mark the installation as complete")
    }

    async fn python(&self, name: &str, package: &str) -> anyhow::Result<()> {
        let folder = self.folder.join(name);
        if folder.join("installed").exists() {
            return Ok(());
        }
        let mut create = Command::new("python3");
        create.args(["-m", "venv", "--clear"]).arg(&folder);
        run(create, INSTALL_LIMIT).await.context("create a Python environment")?;
        let mut install = Command::new(existing(folder.join("bin/pip"))?);
        install.args(["install", "--quiet", package]);
        run(install, INSTALL_LIMIT).await.with_context(|| format!("install {package}"))?;
        std::fs::write(folder.join("installed"), "").context("mark the installation as complete")
    }

    fn node(&self) -> String {
        self.module("node/bin/node")
    }

    fn module(&self, path: &str) -> String {
        text(&self.folder.join("npm/node_modules").join(path))
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The first processor that this process may use.
fn first_processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let first: String = allowed.trim().chars().take_while(char::is_ascii_digit).collect();
    if first.is_empty() { "0".to_owned() } else { first }
}
