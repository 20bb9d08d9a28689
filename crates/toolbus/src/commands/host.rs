//! `toolbus host`: runs MCP servers on this machine for workers anywhere. It dials out to the broker, so it needs no open
//! port, and it comes back whenever the broker does.

use super::tell;
use crate::failure::Failure;
use crate::hosting::{HostingArgs, Identities};
use crate::reach::{BusArgs, LocalAgent};
use crate::reload;
use crate::stop::service_stop_signal;
use clap::Args;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_broker::OWN_NAME;
use toolbus_client::{BrokerClient, BrokerError};
use toolbus_host::{HostError, run_host};
use toolbus_protocol::{AgentRef, ErrorCode};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus host --broker wss://bus.example:7420/bus --token-file token --id desktop
  toolbus host --mcp-config ~/.cursor/mcp.json")]
pub struct HostArgs {
    #[command(flatten)]
    hosting: HostingArgs,
    /// Where toolbus.toml has no [roles], let agents of every role use everything, and not only those of the broker's own
    /// machine. For brokers with a shared token.
    #[arg(long)]
    everyone: bool,
    #[command(flatten)]
    bus: BusArgs,
}

/// The wait before the next attempt, doubling up to the longest; a run that lasted makes it short again.
const BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
const LASTING_RUN: Duration = Duration::from_secs(10);

pub async fn run(args: HostArgs) -> Result<(), Failure> {
    let config = args.hosting.load()?;
    let mode = if args.everyone { Identities::SharedToken } else { Identities::Credentials };
    let mut hosting = args.hosting.hosting(&config, mode, false)?;
    let stop = service_stop_signal()?;
    // A token that somebody gave has a name with it; the one that a broker made for its own machine's host has this.
    let me = match !hosting.is_named && args.bus.has_token() {
        true => OWN_NAME.to_owned(),
        false => hosting.name.clone(),
    };
    let named = if me == OWN_NAME { String::new() } else { format!(" as {me:?}") };
    tell(&format!("hosting {}{named}\nfor the broker at {}", hosting.server_names(), args.bus.url()));
    let (place, data) = (args.hosting.state_place(&config), config.data.clone());
    let policy = Arc::clone(&hosting.options.policy);
    tokio::spawn(reload::of_host(args.hosting, config, mode, policy, stop.clone()));
    let mut backoff = BACKOFF;
    let mut has_state = false;
    loop {
        let began = Instant::now();
        let token = args.bus.token_in_file();
        let outcome = tokio::select! {
            client = args.bus.connect(LocalAgent::Host, AgentRef::new(me.clone()), true) => client,
            () = stop.cancelled() => return Ok(()),
        };
        let failure = match outcome {
            Ok(client) => {
                // Only now is it known whose state it is.
                if !has_state {
                    let name = client.me().session_id;
                    place.open(&mut hosting.options, data.as_deref(), &name)?;
                    has_state = true;
                }
                serve(client, &hosting.options, &stop).await
            }
            Err(failure) => Err(failure),
        };
        let failure = match failure {
            Ok(()) if stop.is_cancelled() => return Ok(()),
            Ok(()) => Failure::Client(BrokerError::Closed),
            // A token that was renewed in its file gets its chance.
            Err(failure) if is_final(&failure) && token == args.bus.token_in_file() => return Err(failure),
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
    stop: &tokio_util::sync::CancellationToken,
) -> Result<(), Failure> {
    let servers = options.config.servers.len();
    let name = client.me().session_id;
    tracing::info!("hosting {servers} server{} as {name:?}", if servers == 1 { "" } else { "s" });
    run_host(client, options.clone(), stop.clone()).await?;
    Ok(())
}

/// What no repetition will change: a wrong address, a wrong token, another host with the same name.
fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Client(error) | Failure::Host(HostError::Bus(error)) => {
            error.is_final() || error.code() == Some(ErrorCode::NotAHost)
        }
        Failure::Host(_) => false,
        _ => true,
    }
}
