//! `toolbus host`: runs MCP servers on this machine for workers anywhere. It dials out to the broker, so it needs no open
//! port, and it comes back whenever the broker does.

use super::tell;
use crate::failure::Failure;
use crate::hosting::HostingArgs;
use crate::reach::BusArgs;
use crate::stop::stop_signal;
use clap::Args;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError};
use toolbus_host::{HostError, run_host};
use toolbus_protocol::AgentRef;

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus host --broker ws://bus.example:7420/bus --token-file token --id desktop
  toolbus host --mcp-config ~/.cursor/mcp.json")]
pub struct HostArgs {
    #[command(flatten)]
    hosting: HostingArgs,
    #[command(flatten)]
    bus: BusArgs,
}

/// The wait before the next attempt, doubling up to the longest; a run that lasted makes it short again.
const BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
const LASTING_RUN: Duration = Duration::from_secs(10);

pub async fn run(args: HostArgs) -> Result<(), Failure> {
    let config = args.hosting.load()?;
    let hosting = args.hosting.hosting(&config, false)?;
    let stop = stop_signal()?;
    tell(&format!("hosting {} as {:?}\nfor the broker at {}", hosting.server_names(), hosting.name, args.bus.url()));
    let mut backoff = BACKOFF;
    loop {
        let began = Instant::now();
        let outcome = tokio::select! {
            client = args.bus.connect(AgentRef::new(hosting.name.clone()), true) => client,
            () = stop.cancelled() => return Ok(()),
        };
        let failure = match outcome {
            Ok(client) => serve(client, &hosting.options, &hosting.name, &stop).await,
            Err(failure) => Err(failure),
        };
        let failure = match failure {
            Ok(()) if stop.is_cancelled() => return Ok(()),
            Ok(()) => Failure::Client(BrokerError::Closed),
            Err(failure) if is_final(&failure) => return Err(failure),
            Err(failure) => failure,
        };
        if began.elapsed() >= LASTING_RUN {
            backoff = BACKOFF;
        }
        tracing::warn!("{failure}; trying again in {backoff:?}");
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = stop.cancelled() => return Ok(()),
        }
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}

async fn serve(
    client: BrokerClient,
    options: &toolbus_host::HostOptions,
    name: &str,
    stop: &tokio_util::sync::CancellationToken,
) -> Result<(), Failure> {
    let servers = options.config.servers.len();
    tracing::info!("hosting {servers} server{} as {name:?}", if servers == 1 { "" } else { "s" });
    run_host(client, options.clone(), stop.clone()).await?;
    Ok(())
}

/// What no repetition will change: a wrong address, a wrong token, another host with the same name.
fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Client(error) | Failure::Host(HostError::Bus(error)) => {
            matches!(error, BrokerError::Auth { .. } | BrokerError::Address(_) | BrokerError::Protocol(_))
        }
        Failure::Host(_) => false,
        _ => true,
    }
}
