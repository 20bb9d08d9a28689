//! The paths from a client to the server: direct, through toolbus, and through other proxies. Each is started as its
//! own documentation says.

use std::{net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use tokio::process::Command;

use super::{Era, connection::Connection, programs::Programs};
use crate::{own_broker, process::Running};

/// Under valgrind, programs start slowly.
const READY_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    Direct,
    Relay,
    Toolbus,
    ToolbusSafe,
    ToolbusHttp,
    ToolbusHttpSafe,
    Supergateway,
    McpRemote,
    FastMcp,
    NpmMcpProxy,
    PypiMcpProxy,
}

impl Path {
    pub const ALL: [Path; 11] = [
        Path::Direct,
        Path::Relay,
        Path::Toolbus,
        Path::ToolbusSafe,
        Path::ToolbusHttp,
        Path::ToolbusHttpSafe,
        Path::Supergateway,
        Path::McpRemote,
        Path::FastMcp,
        Path::NpmMcpProxy,
        Path::PypiMcpProxy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Relay => "bare-relay",
            Path::Toolbus => "toolbus",
            Path::ToolbusSafe => "toolbus-safe",
            Path::ToolbusHttp => "toolbus-http",
            Path::ToolbusHttpSafe => "toolbus-http-safe",
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
            Path::Relay => "client → three processes that forward bytes over TCP → server",
            Path::Toolbus => "client → toolbus connect → broker → host → server; durable, tool not replay-safe",
            Path::ToolbusSafe => "the same; durable, replay-safe tool",
            Path::ToolbusHttp => "client → HTTP /mcp of toolbus up → server; durable, tool not replay-safe",
            Path::ToolbusHttpSafe => "the same; durable, replay-safe tool",
            Path::Supergateway => "client → HTTP supergateway 4.0.0 --stateful → server",
            Path::McpRemote => "client → mcp-remote 0.15.1 → supergateway → server",
            Path::FastMcp => "client → fastmcp 4.1.2 proxy over stdio → server",
            Path::NpmMcpProxy => "client → HTTP npm mcp-proxy 6.7.19 → server",
            Path::PypiMcpProxy => "client → HTTP PyPI mcp-proxy 0.13.0 → server",
        }
    }

    /// Whether it is a proxy of others.
    pub fn needs_installation(self) -> bool {
        use Path::{FastMcp, McpRemote, NpmMcpProxy, PypiMcpProxy, Supergateway};
        matches!(self, Supergateway | McpRemote | FastMcp | NpmMcpProxy | PypiMcpProxy)
    }

    /// Whether the tool may run twice, so that the host doesn't wait for the journal's sync.
    fn is_replay_safe(self) -> bool {
        matches!(self, Path::ToolbusSafe | Path::ToolbusHttpSafe)
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
    processes: Vec<Running>,
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
        let folder = own_broker::folder()?;
        let mut processes = Vec::new();
        let server = programs.server();
        let endpoint = match path {
            Path::Direct => Endpoint::Stdio(server),
            Path::Relay => {
                let last = relay(programs, "host-relay", &folder, &mut processes, |relay| {
                    relay.arg("--").args(&server);
                });
                let last = last.await?;
                let middle = relay(programs, "broker-relay", &folder, &mut processes, |relay| {
                    relay.args(["--dial", &last]);
                });
                let middle = middle.await?;
                Endpoint::Stdio(programs.relay(&["--dial", &middle]))
            }
            Path::Toolbus | Path::ToolbusSafe => {
                let (broker, url, _) = own_broker::start_with(folder.path(), &[]).await?;
                processes.push(broker);
                let mut host = Command::new(&programs.toolbus);
                host.args(["host", "--broker", &url, "--config"]).arg(configuration(path, &folder, &server)?);
                host.arg("--state").arg(folder.path().join("host-state"));
                host.arg("--token-file").arg(folder.path().join("data/host.token"));
                let host = Running::spawn("host", host, folder.path())?;
                let token = folder.path().join("data/token");
                wait_for_server(programs, &url, &token).await.with_context(|| host.log_tail())?;
                processes.push(host);
                let connect = [programs.toolbus.display().to_string(), "connect".into(), "--broker".into(), url];
                let connect = connect.into_iter().chain(["--token-file".into(), token.display().to_string()]);
                Endpoint::Stdio(connect.collect())
            }
            Path::ToolbusHttp | Path::ToolbusHttpSafe => {
                let mut up = programs.up();
                up.args(["--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
                up.arg("--config").arg(configuration(path, &folder, &server)?);
                let mut up = Running::spawn("up", up, folder.path())?;
                let bus = up.line_after("listening on ", READY_LIMIT).await?;
                let token_file = folder.path().join("data/token");
                wait_for_server(programs, &bus, &token_file).await.with_context(|| up.log_tail())?;
                processes.push(up);
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
        Ok(Self { path, folder, endpoint, processes })
    }

    /// Asks its processes to stop, and waits for them.
    pub async fn terminate(self) -> anyhow::Result<()> {
        for process in self.processes {
            process.terminate(READY_LIMIT).await?;
        }
        Ok(())
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

/// Starts a relay that listens, and returns its address.
async fn relay(
    programs: &Programs,
    name: &'static str,
    folder: &tempfile::TempDir,
    processes: &mut Vec<Running>,
    next: impl FnOnce(&mut Command),
) -> anyhow::Result<String> {
    let mut command = command(&programs.relay(&["--listen"]))?;
    next(&mut command);
    let mut relay = Running::spawn(name, command, folder.path())?;
    let address = relay.line_after("listening on ", READY_LIMIT).await?;
    processes.push(relay);
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

fn configuration(path: Path, folder: &tempfile::TempDir, server: &[String]) -> anyhow::Result<PathBuf> {
    let (program, args) = server.split_first().context("a server has a program")?;
    let replay = if path.is_replay_safe() { "safe" } else { "never" };
    let text = format!("[servers.echo]\ncommand = {program:?}\nargs = {args:?}\nreplay = {replay:?}\n");
    let file = folder.path().join("toolbus.toml");
    std::fs::write(&file, text).context("write the configuration")?;
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
