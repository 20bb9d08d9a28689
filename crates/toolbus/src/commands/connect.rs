//! `toolbus connect`: a stdio MCP server with the tools of all hosts. Standard output carries MCP only; everything else
//! goes to standard error.

use super::parse_duration;
use crate::failure::Failure;
use crate::frontend_bus;
use crate::no_broker::RequestBuffer;
use crate::reach::{BusArgs, LocalAgent, in_role, own_mailbox};
use crate::stop::stop_signal;
use clap::Args;
use std::cell::RefCell;
use std::io::Cursor;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use toolbus_base::Backoff;
use toolbus_client::{BrokerClient, BrokerError};
use toolbus_protocol::AgentRef;
use toolbus_worker::{StdioOptions, Worker, WorkerOptions, serve_streams, stdin, stdout};

#[derive(Args)]
#[command(after_help = "\
Example, in the configuration of an MCP client:
  {\"mcpServers\": {\"toolbus\": {\"command\": \"toolbus\", \"args\": [\"connect\"]}}}")]
pub struct ConnectArgs {
    /// This worker's mailbox: the agent's name, or NAME#suffix. Default: a new mailbox of the agent for every run.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Role to act in, with a shared token. Otherwise the credential determines the role.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// Use only this host, or this pool of hosts. Default: all hosts that the role may use.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Deadline of calls, including the time to wait for a host that is away.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// Fail calls while their host is away (TB0427), instead of waiting for it.
    #[arg(long)]
    fail_fast: bool,
    /// How long a call waits for a host of a pool that left while it had the call. After that the call is withdrawn: it runs at
    /// another host of the pool if it may run twice, and fails otherwise (TB0420).
    #[arg(long, value_parser = parse_duration, default_value = "15s", value_name = "DURATION")]
    pool_grace: Duration,
    /// Answer clients that support tasks (MCP 2026-07-28) with a task if a call takes longer than this. By default only
    /// calls to hosts that are away become tasks. Such calls report no progress; clients with elicitation, sampling or
    /// roots keep ordinary calls.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    task_after: Option<Duration>,
    #[command(flatten)]
    bus: BusArgs,
}

/// How long the client of an earlier worker may take to repeat its calls: the usual `join_window` of a host.
const REPEATS: Duration = Duration::from_secs(600);
/// Between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Between warnings that there is no broker.
const WARN_INTERVAL: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

pub async fn run(args: ConnectArgs) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let (mut input, mut output) = (stdin(), stdout());
    let obstacle = RefCell::new(None);
    let mut buffer = RequestBuffer::new(&mut input, &mut output, args.bus.url()?, &obstacle);
    let client = tokio::select! {
        client = connect(&args, &obstacle) => client?,
        ended = buffer.run() => return ended,
        () = stop.cancelled() => return Ok(()),
    };
    let buffered = buffer.into_bytes();
    let bus = tokio::select! {
        bus = frontend_bus::open(client) => bus?,
        () = stop.cancelled() => return Ok(()),
    };
    let ConnectArgs { host, deadline: call_deadline, fail_fast, pool_grace, task_after, .. } = args;
    let options = WorkerOptions {
        host,
        call_deadline,
        fail_fast,
        pool_grace,
        asks_for: Some(REPEATS),
        task_after,
        ..WorkerOptions::default()
    };
    let worker = Worker::new(bus, options);
    let options = StdioOptions { stop, ..StdioOptions::default() };
    Ok(serve_streams(worker, Cursor::new(buffered).chain(input), output, options).await?)
}

/// Retries without a time limit: the client that started this process decides how long to wait. Notes why the last
/// attempt failed.
async fn connect(args: &ConnectArgs, obstacle: &RefCell<Option<BrokerError>>) -> Result<BrokerClient, Failure> {
    let name = args.id.clone().unwrap_or_else(|| own_mailbox("connect"));
    let me = in_role(AgentRef::new(name), args.role.clone());
    let (mut backoff, mut warn_interval) = (BACKOFF, WARN_INTERVAL);
    let mut warn_at = Instant::now();
    loop {
        let failure = match args.bus.connect(LocalAgent::Worker, me.clone(), true).await {
            Err(Failure::Client(error @ (BrokerError::Transport(_) | BrokerError::Busy { .. }))) => {
                *obstacle.borrow_mut() = Some(error.clone());
                error.into()
            }
            Err(failure @ Failure::NoBroker { .. }) => failure,
            outcome => return outcome,
        };
        if Instant::now() >= warn_at {
            tracing::warn!("{failure}; still trying");
            warn_at = Instant::now() + warn_interval.next_delay();
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
