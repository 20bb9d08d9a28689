//! `toolbus host`: runs MCP servers on this machine and offers their tools on the bus. It dials out to the broker, so
//! it needs no open port, and reconnects after every outage.

use crate::failure::Failure;
use crate::hosting::{self, HostingArgs, Identities};
use crate::output::print_startup;
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
    /// If toolbus.toml has no [roles], allow every role to use everything, not only the built-in roles local and
    /// operator. For brokers with a shared token.
    #[arg(long)]
    everyone: bool,
    #[command(flatten)]
    bus: BusArgs,
}

/// A run of at least this length resets the backoff.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(10);

pub async fn run(args: HostArgs) -> Result<(), Failure> {
    let config = args.hosting.load()?;
    let mode = if args.everyone { Identities::SharedToken } else { Identities::Credentials };
    let mut hosting = args.hosting.hosting(&config, mode, false)?;
    let stop = service_stop_signal()?;
    // A given token determines the name. The token that a broker creates for its own machine belongs to the default
    // name.
    let me = match !hosting.is_named && args.bus.has_token() {
        true => OWN_NAME.to_owned(),
        false => hosting.name.clone(),
    };
    let named = if me == OWN_NAME { String::new() } else { format!(" as {me:?}") };
    print_startup(&format!("hosting {}{named}\nfor the broker at {}", hosting.server_names(), args.bus.url()?));
    let (state, data) = (args.hosting.state_folder(&config), config.data.clone());
    let policy = Arc::clone(&hosting.options.policy);
    tokio::spawn(reload::for_host(args.hosting, config, mode, policy, stop.clone()));
    let mut backoff = hosting::reconnect_backoff();
    let mut shipper = None;
    loop {
        let began = Instant::now();
        let token = args.bus.token_in_file();
        let outcome = tokio::select! {
            client = args.bus.connect(LocalAgent::Host, AgentRef::new(me.clone()), true) => client,
            () = stop.cancelled() => return Ok(()),
        };
        let failure = match outcome {
            Ok(client) => {
                // The name, and with it the state folder, is known only after the handshake.
                if shipper.is_none() {
                    let name = client.me().session_id;
                    shipper = Some(state.open(&mut hosting.options, data.as_deref(), &name)?);
                }
                serve(client, &hosting.options, &stop).await
            }
            Err(failure) => Err(failure),
        };
        let failure = match failure {
            Ok(()) if stop.is_cancelled() => return Ok(()),
            Ok(()) => Failure::Client(BrokerError::Closed),
            // Retry if the token file was renewed meanwhile.
            Err(failure) if is_final(&failure) && token == args.bus.token_in_file() => return Err(failure),
            Err(failure) => failure,
        };
        if began.elapsed() >= BACKOFF_RESET_AFTER {
            backoff.reset();
        }
        let delay = backoff.next_delay();
        tracing::warn!("{failure}; retrying in {delay:?}");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn serve(
    client: BrokerClient,
    options: &toolbus_host::HostOptions,
    stop: &tokio_util::sync::CancellationToken,
) -> Result<(), Failure> {
    let servers = options.config.servers.iter().filter(|server| !server.disabled).count();
    let name = client.me().session_id;
    tracing::info!("hosting {servers} server{} as {name:?}", if servers == 1 { "" } else { "s" });
    run_host(client, options.clone(), stop.clone()).await?;
    Ok(())
}

/// Whether a retry is pointless: a wrong address, a wrong token, or another host with the same name.
fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Client(error) | Failure::Host(HostError::Bus(error)) => {
            error.is_final() || error.code() == Some(ErrorCode::NotAHost)
        }
        Failure::Host(_) => false,
        _ => true,
    }
}
