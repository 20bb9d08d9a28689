//! `toolbus up`: one process with the broker, a host for the configured servers (or the demo server), and the MCP
//! endpoint for HTTP clients.

use super::broker::BrokerArgs;
use crate::banner::Banner;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::hosting::{self, Hosting, HostingArgs};
use crate::output::print_startup;
use crate::own_host;
use crate::reload;
use crate::stop::service_stop_signal;
use clap::Args;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use toolbus_broker::BrokerServer;
use toolbus_host::run_host;

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus up                                  host the demo server
  toolbus up --mcp-config ~/.cursor/mcp.json  host the servers of an MCP client's configuration
  toolbus init && toolbus up                  host the servers of toolbus.toml")]
pub struct UpArgs {
    #[command(flatten)]
    hosting: HostingArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
}

pub async fn run(args: UpArgs) -> Result<(), Failure> {
    let config = args.hosting.load()?;
    let broker_args = args.broker.or_config(
        config.listen,
        config.data.clone(),
        config.shared_token_file.clone(),
        config.auth.clone(),
        config.ship_audit.clone(),
    );
    let mode = broker_args.identities();
    let mut hosting = args.hosting.hosting(&config, mode, true)?;
    let stop = service_stop_signal()?;
    let broker = broker_args.open().await?;
    let name = hosting.name.clone();
    let _shipper = args.hosting.state_folder(&config).open(&mut hosting.options, Some(&broker.data), &name)?;
    broker.use_policy(&hosting.options.policy);
    broker.server.reserve(&hosting.name);
    broker.server.follow_agents();
    own_host::retire_previous(&broker.server, &broker.data, &hosting.name).await;
    let roles = config.roles();
    let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
    let warnings = args.endpoint.warnings(&roles, broker.shared_token);
    let mcp_role = args.endpoint.mcp_role.clone();
    endpoint::mount(&broker, args.endpoint)?;
    let mcp_role = mcp_role.as_deref();
    let banner = Banner { broker: &broker, hosting: &hosting, roles, warnings, mcp_role };
    print_startup(&banner.text());

    let policy = Arc::clone(&hosting.options.policy);
    let host_stop_limit = hosting.options.limits.stop();
    tokio::spawn(reload::for_host(args.hosting, config, mode, policy, stop.clone()));
    let hosts_stop = CancellationToken::new();
    let host = tokio::spawn(keep_hosting(Arc::clone(&broker.server), hosting, hosts_stop.clone()));
    let server = Arc::clone(&broker.server);
    let stopping = tokio::spawn(async move {
        let mut host = host;
        let outcome = tokio::select! {
            () = stop.cancelled() => {
                tracing::info!("stopping");
                server.drain();
                // The host stops first, so that its last replies still reach the broker.
                hosts_stop.cancel();
                tokio::time::timeout(host_stop_limit, &mut host).await.ok();
                Ok(())
            }
            // It ends only when it is stopped, or by a panic.
            ended = &mut host => ended.map_err(|_| Failure::HostPanicked),
        };
        server.stop();
        outcome
    });
    broker.server.serve(broker.listener).await?;
    stopping.await.unwrap_or(Err(Failure::HostPanicked))?;
    tracing::info!("stopped; all accepted messages are on disk");
    Ok(())
}

/// Runs the host in the broker's process. Its connection can't fail, but another host may displace it by subscribing to
/// its mailbox; it then retries with backoff.
async fn keep_hosting(server: Arc<BrokerServer>, hosting: Hosting, stop: CancellationToken) {
    let mut backoff = hosting::reconnect_backoff();
    loop {
        match host_once(Arc::clone(&server), &hosting, &stop).await {
            Ok(()) if stop.is_cancelled() => return,
            Ok(()) => tracing::warn!("the host ended; retrying"),
            Err(error) => tracing::warn!("{error}; retrying"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn host_once(server: Arc<BrokerServer>, hosting: &Hosting, stop: &CancellationToken) -> Result<(), Failure> {
    let client = own_host::connect(server, &hosting.name).await?;
    run_host(client, hosting.options.clone(), stop.clone()).await?;
    Ok(())
}
