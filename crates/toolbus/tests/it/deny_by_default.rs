//! Requests that no rule allows are denied: for all ways to start toolbus, with and without a configuration file, over
//! the bus, stdio and HTTP. The operator keeps its rights through a built-in rule.

use crate::mcp_client::{HttpClient, McpClient, StdioClient};
use crate::support::{BrokerProcess, soon};
use crate::up::{CommandOutput, UpInstance, toolbus};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::Child;

/// How toolbus is started: in one process, or as broker and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    UpWithDemo,
    UpWithMcpConfig,
    BrokerAndHost,
}

/// The content of toolbus.toml, and which roles may then call the tool.
#[derive(Debug, Clone, Copy)]
struct File {
    text: Option<&'static str>,
    allowed: [(&'static str, bool); 4],
}

const FILES: [File; 3] = [
    File { text: None, allowed: [("nobody", false), ("reader", false), ("local", true), ("operator", true)] },
    File {
        text: Some("caller_grace = \"2m\"\n"),
        allowed: [("nobody", false), ("reader", false), ("local", true), ("operator", true)],
    },
    File {
        text: Some("[roles.reader]\nallow = [\"now\"]\n"),
        allowed: [("nobody", false), ("reader", true), ("local", false), ("operator", true)],
    },
];

/// A running service in a temporary folder.
struct Service {
    folder: TempDir,
    url: String,
    _processes: Vec<Child>,
}

impl Service {
    async fn start(start: Start, file: File) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let demo = json!({"command": env!("CARGO_BIN_EXE_toolbus"), "args": ["demo-server"]});
        std::fs::write(folder.path().join("mcp.json"), json!({"mcpServers": {"demo": demo}}).to_string())
            .expect("the folder is writable");
        if let Some(text) = file.text {
            std::fs::write(folder.path().join("toolbus.toml"), text).expect("the folder is writable");
        }
        let service = match start {
            Start::UpWithDemo => Self::of(UpInstance::start_in(folder, &[]).await),
            Start::UpWithMcpConfig => Self::of(UpInstance::start_in(folder, &["--mcp-config", "mcp.json"]).await),
            Start::BrokerAndHost => Self::broker_and_host(folder).await,
        };
        service.until_the_tool_is_listed().await;
        service
    }

    fn of(instance: UpInstance) -> Self {
        let url = instance.url().to_owned();
        Self { folder: instance.folder, url, _processes: vec![instance.child] }
    }

    async fn broker_and_host(folder: TempDir) -> Self {
        let mut command = toolbus(folder.path());
        command.args(["broker", "--listen", "127.0.0.1:0"]);
        let broker = BrokerProcess::spawn(command).await;
        let url = broker.url();
        let mut host = toolbus(folder.path());
        host.args(["host", "--mcp-config", "mcp.json", "--broker", &url]).stdout(Stdio::null()).stderr(Stdio::null());
        let host = host.spawn().expect("the binary starts");
        Self { folder, url, _processes: vec![broker.child, host] }
    }

    async fn until_the_tool_is_listed(&self) {
        let operator = self.data().join("operator.token");
        soon("the tools", async {
            while !self.run(&operator, &["tools"]).await.out.contains("text_stats") {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data/toolbus")
    }

    async fn run(&self, token: &Path, args: &[&str]) -> CommandOutput {
        let mut command = toolbus(self.folder.path());
        command.args(args).args(["--broker", &self.url, "--token-file"]).arg(token);
        CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
    }

    /// A token of an agent with that role.
    async fn token(&self, role: &str) -> PathBuf {
        match role {
            "local" => self.data().join("token"),
            "operator" => self.data().join("operator.token"),
            role => {
                let file = self.folder.path().join(format!("{role}.token"));
                let mut add = toolbus(self.folder.path());
                add.args(["agent", "add", &format!("{role}-agent"), "--role", role, "--token-file"]).arg(&file);
                CommandOutput::of(add.output().await.expect("the binary starts")).check(0, &[], &[]);
                file
            }
        }
    }

    async fn call_over_bus(&self, token: &Path) -> bool {
        self.run(token, &["call", "now", "--arg", "zone=UTC", "--json"]).await.out.contains("UTC")
    }

    async fn call_over_stdio(&self, token: &Path) -> bool {
        self.call_as(&mut StdioClient::connect(&self.url, token)).await
    }

    async fn call_over_http(&self, token: &Path) -> bool {
        let url = self.url.replace("ws://", "http://").replace("/bus", "/mcp");
        let token = std::fs::read_to_string(token).expect("a token");
        self.call_as(&mut HttpClient::to(&url, token.trim())).await
    }

    async fn call_as(&self, client: &mut impl McpClient) -> bool {
        let about = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}"#;
        let params = format!(r#"{{"name":"now","arguments":{{"zone":"UTC"}},"_meta":{about}}}"#);
        let response: Value =
            serde_json::from_str(&client.request("tools/call", &params).await.response).expect("JSON");
        response["result"]["isError"] != true && response["result"].to_string().contains("UTC")
    }
}

#[tokio::test]
async fn up_with_the_demo_server_denies_by_default() {
    check_all_files(Start::UpWithDemo).await;
}

#[tokio::test]
async fn up_with_an_mcp_config_denies_by_default() {
    check_all_files(Start::UpWithMcpConfig).await;
}

#[tokio::test]
async fn broker_and_host_deny_by_default() {
    check_all_files(Start::BrokerAndHost).await;
}

async fn check_all_files(start: Start) {
    for file in FILES {
        let service = Service::start(start, file).await;
        for (role, expected) in file.allowed {
            let token = service.token(role).await;
            let bus = service.call_over_bus(&token).await;
            let stdio = soon("stdio", service.call_over_stdio(&token)).await;
            let http = soon("HTTP", service.call_over_http(&token)).await;
            assert_eq!([bus, stdio, http], [expected; 3], "{start:?} {file:?} role {role}: bus, stdio, HTTP");
            let mut check = toolbus(service.folder.path());
            check.args(["policy", "check", "--role", role, "--tool", "now", "--server", "demo"]);
            let output = CommandOutput::of(check.output().await.expect("the binary starts"));
            output.check(if expected { 0 } else { 1 }, &[if expected { "allow" } else { "deny" }], &[]);
        }
    }
}

#[tokio::test]
async fn the_operators_built_in_rule_is_shown_and_can_be_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = async |role: &str| {
        let mut check = toolbus(folder.path());
        check.args(["policy", "check", "--role", role, "--tool", "write_file", "--server", "files"]);
        CommandOutput::of(check.output().await.expect("the binary starts"))
    };
    check("operator").await.check(0, &["allow: allow \"**\" in [roles.operator]", "(built in)"], &[]);
    check("local").await.check(0, &["allow: allow \"**\" in [roles.local]", "(built in)"], &[]);
    check("nobody").await.check(1, &["deny: no rules are known for this role", "[roles.nobody]"], &[]);
    let file = folder.path().join("toolbus.toml");
    std::fs::write(&file, "[roles.reader]\nallow = [\"read_*\"]\n").expect("writable");
    check("operator").await.check(0, &["allow \"**\" in [roles.operator]", "(built in)"], &[]);
    check("local").await.check(1, &["deny"], &[]);
    std::fs::write(&file, "[roles.operator]\nallow = [\"read_*\"]\n").expect("writable");
    check("operator").await.check(1, &["deny: no rule of the role allows it"], &[]);
}
