//! `toolbus up`: all of it in one process. The broker, a host with the servers of the configuration (or with the demo
//! server), and the MCP endpoint for HTTP clients.

use super::broker::{BrokerArgs, OpenBroker};
use super::tell;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::hosting::{Hosting, HostingArgs};
use crate::stop::stop_signal;
use clap::Args;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_broker::BrokerServer;
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_host::run_host;
use toolbus_protocol::AgentRef;

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus up                                  a demo server, to see how it works
  toolbus up --mcp-config ~/.cursor/mcp.json  the servers of another client's configuration
  toolbus init && toolbus up                  the servers of toolbus.toml")]
pub struct UpArgs {
    #[command(flatten)]
    hosting: HostingArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
}

/// How long servers may take to end before the broker goes.
const FAREWELL: Duration = Duration::from_secs(8);

pub async fn run(args: UpArgs) -> Result<(), Failure> {
    let config = args.hosting.load()?;
    let hosting = args.hosting.hosting(&config, true)?;
    let stop = stop_signal()?;
    let broker = args.broker.or(config.listen, config.data.clone()).open().await?;
    let loopback_role = args.endpoint.loopback_role.clone();
    endpoint::mount(&broker, args.endpoint)?;
    welcome(&broker, &hosting, loopback_role.as_deref());

    let hosts_stop = CancellationToken::new();
    let host = tokio::spawn(keep_hosting(Arc::clone(&broker.server), hosting, hosts_stop.clone()));
    let server = Arc::clone(&broker.server);
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping");
        // The servers first, while their answers still have a way to go.
        hosts_stop.cancel();
        tokio::time::timeout(FAREWELL, host).await.ok();
        server.stop();
    });
    broker.server.serve(broker.listener).await?;
    tracing::info!("stopped; everything accepted is on disk");
    Ok(())
}

/// The host in the broker's own process. Its connection can't be lost to the network, but somebody else may take its
/// name; then it tries to get it back, ever more rarely.
async fn keep_hosting(server: Arc<BrokerServer>, hosting: Hosting, stop: CancellationToken) {
    const BACKOFF: Duration = Duration::from_millis(500);
    const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
    let mut backoff = BACKOFF;
    loop {
        match host_once(Arc::clone(&server), &hosting, &stop).await {
            Ok(()) if stop.is_cancelled() => return,
            Ok(()) => tracing::warn!("the host ended; trying again in {backoff:?}"),
            Err(error) => tracing::warn!("{error}; trying again in {backoff:?}"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = stop.cancelled() => return,
        }
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}

async fn host_once(server: Arc<BrokerServer>, hosting: &Hosting, stop: &CancellationToken) -> Result<(), Failure> {
    let agent = AgentRef::new(hosting.name.clone());
    let me = agent.clone();
    let pipes = move || server.attach(me.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
    let client = BrokerClient::connect_local(pipes, agent, ClientOptions::default()).await?;
    run_host(client, hosting.options.clone(), stop.clone()).await?;
    Ok(())
}

/// Everything in one piece: whoever reads it may stop reading at any line.
fn welcome(broker: &OpenBroker, hosting: &Hosting, loopback_role: Option<&str>) {
    let names: Vec<&str> = hosting.options.config.servers.iter().map(|server| server.name.as_str()).collect();
    let hosted = match hosting.demo {
        true => "the demo server; `toolbus init` writes a toolbus.toml for servers of your own".to_owned(),
        false => names.join(", "),
    };
    let mut text = format!("{}\nhosting {hosted}\n", broker.whereabouts());
    if let Some(role) = loopback_role {
        text.push_str(&format!("\n{}\n", endpoint::warning(role)));
    }
    text.push_str(&format!(
        "\nMCP clients that start a program (stdio):\n  {}\n  or in their configuration:\n  {}\n",
        paste_for_stdio(broker.address),
        snippet(broker.address),
    ));
    text.push_str(&format!(
        "\nMCP clients that speak HTTP:\n  http://{}{}\n  with the header \"Authorization: Bearer $(cat {})\"\n",
        broker.address,
        endpoint::PATH,
        broker.token_file.display()
    ));
    text.push_str(&format!("\nTry in another terminal:\n{}", next_commands(broker, hosting.demo)));
    tell(&text);
}

fn paste_for_stdio(address: SocketAddr) -> String {
    format!("claude mcp add toolbus -- {} connect --broker ws://{address}/bus", program())
}

fn snippet(address: SocketAddr) -> String {
    let connect = json!({"command": program(), "args": ["connect", "--broker", format!("ws://{address}/bus")]});
    json!({"mcpServers": {"toolbus": connect}}).to_string()
}

/// What a client should start: the name if it is on the path, else where this program is.
fn program() -> String {
    let me = std::env::current_exe().unwrap_or_default();
    let on_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("toolbus") == me));
    if on_path { "toolbus".to_owned() } else { me.to_string_lossy().into_owned() }
}

fn next_commands(broker: &OpenBroker, demo: bool) -> String {
    let to = match broker.address.port() {
        super::broker::DEFAULT_PORT => String::new(),
        _ => format!(" --broker ws://{}/bus", broker.address),
    };
    let program = program();
    let commands = match demo {
        true => [
            format!("{program} tools{to}"),
            format!("{program} call now --arg zone=Asia/Tokyo{to}"),
            format!("{program} call countdown --arg from=20{to}"),
        ],
        false => [
            format!("{program} tools{to}"),
            format!("{program} call TOOL --arg NAME=VALUE{to}"),
            format!("{program} ps{to}"),
        ],
    };
    commands.map(|command| format!("  {command}")).join("\n")
}
