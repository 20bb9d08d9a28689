//! The paths from a client to the server: direct, through toolbus, and through other proxies. Each is started as its
//! own documentation says.

use std::{net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use tokio::process::Command;

use super::{Era, connection::Connection, programs::Programs};
use crate::process::Running;

const READY_LIMIT: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    Direct,
    Toolbus,
    ToolbusHttp,
    Supergateway,
    McpRemote,
    FastMcp,
    NpmMcpProxy,
    PypiMcpProxy,
}

impl Path {
    pub const ALL: [Path; 8] = [
        Path::Direct,
        Path::Toolbus,
        Path::ToolbusHttp,
        Path::Supergateway,
        Path::McpRemote,
        Path::FastMcp,
        Path::NpmMcpProxy,
        Path::PypiMcpProxy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Toolbus => "toolbus",
            Path::ToolbusHttp => "toolbus-http",
            Path::Supergateway => "supergateway",
            Path::McpRemote => "mcp-remote",
            Path::FastMcp => "fastmcp",
            Path::NpmMcpProxy => "mcp-proxy-npm",
            Path::PypiMcpProxy => "mcp-proxy-pypi",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Path::Direct => "client → server over stdio",
            Path::Toolbus => "client → toolbus connect → broker → host → server; four processes, durable",
            Path::ToolbusHttp => "client → HTTP /mcp of toolbus up → server; durable",
            Path::Supergateway => "client → HTTP supergateway 4.0.0 --stateful → server",
            Path::McpRemote => "client → mcp-remote 0.15.1 → supergateway → server",
            Path::FastMcp => "client → fastmcp 4.1.2 proxy over stdio → server",
            Path::NpmMcpProxy => "client → HTTP npm mcp-proxy 6.7.19 → server",
            Path::PypiMcpProxy => "client → HTTP PyPI mcp-proxy 0.13.0 → server",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Path::Toolbus | Path::ToolbusHttp)
    }

    pub fn from_name(name: &str) -> Result<Self, String> {
        let known = Path::ALL.map(Path::name).join(", ");
        Path::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| format!("unknown path {name:?}; known paths: {known}"))
    }
}

/// A path whose processes run. Dropping it kills them.
pub struct RunningPath {
    path: Path,
    folder: tempfile::TempDir,
    endpoint: Endpoint,
    _processes: Vec<Running>,
}

enum Endpoint {
    Http {
        url: String,
        token: Option<String>,
    },
    /// A command line that is started for each client.
    Stdio(Vec<String>),
}

impl RunningPath {
    pub async fn start(path: Path, programs: &Programs) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let mut processes = Vec::new();
        let server = programs.server();
        let endpoint = match path {
            Path::Direct => Endpoint::Stdio(server),
            Path::Toolbus => {
                let url = start_broker(programs, &folder, &mut processes).await?;
                let config = mcp_config(&folder, &server)?;
                let mut host = Command::new(&programs.toolbus);
                host.args(["host", "--broker", &url, "--mcp-config"]).arg(config);
                host.arg("--state").arg(folder.path().join("host-state"));
                let token = folder.path().join("data/token");
                host.arg("--token-file").arg(&token);
                processes.push(Running::spawn("host", host, folder.path())?);
                wait_for_server(programs, &url, &token).await?;
                let connect = [programs.toolbus.display().to_string(), "connect".into(), "--broker".into(), url];
                let connect = connect.into_iter().chain(["--token-file".into(), token.display().to_string()]);
                Endpoint::Stdio(connect.collect())
            }
            Path::ToolbusHttp => {
                let config = mcp_config(&folder, &server)?;
                let mut up = Command::new(&programs.toolbus);
                up.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
                up.arg("--mcp-config").arg(config);
                let mut up = Running::spawn("up", up, folder.path())?;
                let bus = up.line_after("listening on ", READY_LIMIT).await?;
                processes.push(up);
                let token_file = folder.path().join("data/token");
                wait_for_server(programs, &bus, &token_file).await?;
                let token = std::fs::read_to_string(token_file).context("read the token")?;
                let url = bus.replace("ws://", "http://").replace("/bus", "/mcp");
                Endpoint::Http { url, token: Some(token.trim().to_owned()) }
            }
            Path::Supergateway => http(programs.supergateway(&server, free_port()?), &folder, &mut processes).await?,
            Path::McpRemote => {
                let port = free_port()?;
                http(programs.supergateway(&server, port), &folder, &mut processes).await?;
                Endpoint::Stdio(programs.mcp_remote(port))
            }
            Path::FastMcp => Endpoint::Stdio(programs.fastmcp(&server, folder.path())?),
            Path::NpmMcpProxy => http(programs.npm_mcp_proxy(&server, free_port()?), &folder, &mut processes).await?,
            Path::PypiMcpProxy => http(programs.pypi_mcp_proxy(&server, free_port()?), &folder, &mut processes).await?,
        };
        Ok(Self { path, folder, endpoint, _processes: processes })
    }

    /// A new client on this path, before its handshake.
    pub fn client(&self, era: Era) -> anyhow::Result<Connection> {
        match &self.endpoint {
            Endpoint::Http { url, token } => Ok(Connection::http(url, token.clone(), era)),
            Endpoint::Stdio(argv) => {
                let log = self.folder.path().join(format!("{}-client.log", self.path.name()));
                Connection::stdio(command(argv)?, era, &log)
            }
        }
    }
}

async fn start_broker(
    programs: &Programs,
    folder: &tempfile::TempDir,
    processes: &mut Vec<Running>,
) -> anyhow::Result<String> {
    let mut broker = Command::new(&programs.toolbus);
    broker.args(["broker", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
    let mut broker = Running::spawn("broker", broker, folder.path())?;
    let address = broker.line_after("listening on ", READY_LIMIT).await?;
    processes.push(broker);
    Ok(address)
}

/// Waits until the host has announced its server.
async fn wait_for_server(programs: &Programs, url: &str, token: &std::path::Path) -> anyhow::Result<()> {
    let listed = async {
        loop {
            let mut tools = Command::new(&programs.toolbus);
            tools.args(["tools", "--json", "--broker", url, "--token-file"]).arg(token);
            let output = tools.output().await.context("list the tools")?;
            let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if listed["servers"][0]["state"] == "up" {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(READY_LIMIT, listed).await.context("timed out waiting for the host to announce its server")?
}

/// Starts a proxy and waits until it listens.
async fn http(
    proxy: (Vec<String>, u16),
    folder: &tempfile::TempDir,
    processes: &mut Vec<Running>,
) -> anyhow::Result<Endpoint> {
    let (argv, port) = proxy;
    let running = Running::spawn("proxy", command(&argv)?, folder.path())?;
    let listening = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(READY_LIMIT, listening).await.is_err() {
        bail!("{argv:?} does not listen:\n{}", running.log_tail());
    }
    processes.push(running);
    Ok(Endpoint::Http { url: format!("http://127.0.0.1:{port}/mcp"), token: None })
}

fn mcp_config(folder: &tempfile::TempDir, server: &[String]) -> anyhow::Result<PathBuf> {
    let (program, args) = server.split_first().context("a server has a program")?;
    let config = serde_json::json!({"mcpServers": {"echo": {"command": program, "args": args}}});
    let file = folder.path().join("mcp.json");
    std::fs::write(&file, serde_json::to_vec_pretty(&config)?).context("write the config")?;
    Ok(file)
}

fn command(argv: &[String]) -> anyhow::Result<Command> {
    let (program, args) = argv.split_first().context("a command has a program")?;
    let mut command = Command::new(program);
    command.args(args);
    Ok(command)
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("read the port")?.port())
}
