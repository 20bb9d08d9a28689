//! `toolbus connect`: a stdio MCP server for any client's configuration, with the tools of all hosts behind it. Standard
//! output belongs to MCP; everything else goes to standard error.

use super::parse_duration;
use crate::failure::Failure;
use crate::front_bus;
use crate::reach::{BusArgs, in_role};
use clap::Args;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError};
use toolbus_protocol::AgentRef;
use toolbus_worker::{StdioOptions, Worker, WorkerOptions, serve_stdio};

#[derive(Args)]
#[command(after_help = "\
Example, in the configuration of an MCP client:
  {\"mcpServers\": {\"toolbus\": {\"command\": \"toolbus\", \"args\": [\"connect\"]}}}")]
pub struct ConnectArgs {
    /// This worker's name on the bus. A new one for every run by default.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Role to act in.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// Use this host only. By default all that the role may use.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How long a call may take, waiting for a host that is away included.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    #[command(flatten)]
    bus: BusArgs,
}

/// A broker that is just starting, or restarting, is waited for.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(300);

pub async fn run(args: ConnectArgs) -> Result<(), Failure> {
    let client = connect(&args).await?;
    let bus = front_bus::open(client).await?;
    let options = WorkerOptions { host: args.host, call_deadline: args.deadline, ..WorkerOptions::default() };
    let serving = serve_stdio(Worker::new(bus, options), StdioOptions::default());
    let stop = crate::stop::stop_signal()?;
    tokio::select! {
        outcome = serving => Ok(outcome?),
        () = stop.cancelled() => Ok(()),
    }
}

async fn connect(args: &ConnectArgs) -> Result<BrokerClient, Failure> {
    let name = args.id.clone().unwrap_or_else(|| format!("connect-{}", uuid::Uuid::new_v4()));
    let me = in_role(AgentRef::new(name), args.role.clone());
    let patience = Instant::now() + BROKER_PATIENCE;
    loop {
        match args.bus.connect(me.clone(), true).await {
            Err(Failure::Client(BrokerError::Transport(reason))) if Instant::now() < patience => {
                tracing::warn!("no broker yet: {reason}");
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
