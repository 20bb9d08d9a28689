//! `toolbus up`: all of it in one process. The broker, a host with the servers of the configuration (or with the demo
//! server), and the MCP endpoint for HTTP clients.

use super::broker::BrokerArgs;
use super::tell;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::hosting::{Hosting, HostingArgs};
use crate::reload;
use crate::stop::service_stop_signal;
use crate::welcome::Welcome;
use clap::Args;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_broker::{BrokerServer, Identity, Rights};
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
    let broker_args =
        args.broker.or(config.listen, config.data.clone(), config.shared_token_file.clone(), config.auth.clone());
    let mode = broker_args.identities();
    let mut hosting = args.hosting.hosting(&config, mode, true)?;
    let stop = service_stop_signal()?;
    let broker = broker_args.open().await?;
    let name = hosting.name.clone();
    args.hosting.state_place(&config).open(&mut hosting.options, Some(&broker.data), &name)?;
    broker.follow(&hosting.options.policy);
    broker.server.reserve(&hosting.name);
    let roles = config.roles();
    let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
    let warnings = args.endpoint.warnings(&roles, broker.shared_token);
    let mcp_role = args.endpoint.mcp_role.clone();
    endpoint::mount(&broker, args.endpoint)?;
    let mcp_role = mcp_role.as_deref();
    let welcome = Welcome { broker: &broker, hosting: &hosting, roles, warnings, mcp_role };
    tell(&welcome.text());

    let policy = Arc::clone(&hosting.options.policy);
    tokio::spawn(reload::of_host(args.hosting, config, mode, policy, stop.clone()));
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
    let me = Identity::local(agent.clone(), Rights::HOST);
    let pipes = move || server.attach_as(me.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
    let client = BrokerClient::connect_local(pipes, agent, ClientOptions::default()).await?;
    run_host(client, hosting.options.clone(), stop.clone()).await?;
    Ok(())
}
