//! `toolbus connect`: a stdio MCP server for any client's configuration, with the tools of all hosts behind it. Standard
//! output belongs to MCP; everything else goes to standard error.

use super::parse_duration;
use crate::failure::Failure;
use crate::frontend_bus;
use crate::no_broker::Meanwhile;
use crate::reach::{BusArgs, LocalAgent, in_role, own_mailbox};
use crate::stop::stop_signal;
use clap::Args;
use std::io::Cursor;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError};
use toolbus_protocol::AgentRef;
use toolbus_worker::{StdioOptions, Worker, WorkerOptions, serve_streams, stdin, stdout};

#[derive(Args)]
#[command(after_help = "\
Example, in the configuration of an MCP client:
  {\"mcpServers\": {\"toolbus\": {\"command\": \"toolbus\", \"args\": [\"connect\"]}}}")]
pub struct ConnectArgs {
    /// This worker's mailbox: its agent's name, or NAME#suffix. A new one of that agent for every run by default.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Role to act in. It comes with the credential; only a shared token leaves the choice.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// Use this host only. By default all that the role may use.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How long a call may take, waiting for a host that is away included.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// Refuse calls while their host is away (TB0427), instead of letting them wait for it.
    #[arg(long)]
    fail_fast: bool,
    /// Give clients that know tasks (MCP 2026-07-28) a task for a call that takes longer than this. By default only calls to
    /// hosts that are away become tasks. Such calls show no progress; clients that can be asked things keep ordinary calls.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    task_after: Option<Duration>,
    #[command(flatten)]
    bus: BusArgs,
}

/// The wait before the next attempt to reach the broker, doubling up to the longest.
const BACKOFF: Duration = Duration::from_millis(200);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// The same for saying that there is none.
const FIRST_SILENCE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

pub async fn run(args: ConnectArgs) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let (mut input, mut output) = (stdin(), stdout());
    let mut meanwhile = Meanwhile::new(&mut input, &mut output, args.bus.url());
    let client = tokio::select! {
        client = connect(&args) => client?,
        ended = meanwhile.run() => return ended,
        () = stop.cancelled() => return Ok(()),
    };
    let before = meanwhile.into_bytes();
    let bus = tokio::select! {
        bus = frontend_bus::open(client) => bus?,
        () = stop.cancelled() => return Ok(()),
    };
    let ConnectArgs { host, deadline: call_deadline, fail_fast, task_after, .. } = args;
    let options = WorkerOptions { host, call_deadline, fail_fast, task_after, ..WorkerOptions::default() };
    let worker = Worker::new(bus, options);
    let options = StdioOptions { stop, ..StdioOptions::default() };
    Ok(serve_streams(worker, Cursor::new(before).chain(input), output, options).await?)
}

/// For as long as it takes: the client that started us decides when it has waited enough.
async fn connect(args: &ConnectArgs) -> Result<BrokerClient, Failure> {
    let name = args.id.clone().unwrap_or_else(|| own_mailbox("connect"));
    let me = in_role(AgentRef::new(name), args.role.clone());
    let (mut backoff, mut silence) = (BACKOFF, FIRST_SILENCE);
    let mut speak_at = Instant::now();
    loop {
        let failure = match args.bus.connect(LocalAgent::Worker, me.clone(), true).await {
            Err(failure @ (Failure::Client(BrokerError::Transport(_)) | Failure::NoBroker { .. })) => failure,
            outcome => return outcome,
        };
        if Instant::now() >= speak_at {
            tracing::warn!("{failure}; still trying");
            speak_at = Instant::now() + silence;
            silence = (silence * 2).min(LONGEST_SILENCE);
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}
