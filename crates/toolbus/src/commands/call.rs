//! `toolbus call`: calls one tool over the bus.
//!
//! Exit code: 0 for a result of the tool, 1 for an error of the tool or its server, 2 for any other error (of the bus
//! or the arguments), 130 if cancelled by Ctrl-C or SIGTERM.

mod elicit;
mod waiting;

use self::elicit::InputRequired;
use super::outcome::{OutputOptions, report};
use super::{detach, parse_duration};
use crate::arguments;
use crate::availability::{Availability, NOTICE_QUEUE};
use crate::catalog::{Catalog, KnownTool};
use crate::failure::Failure;
use crate::held_back;
use crate::output::print_error;
use crate::progress::Progress;
use crate::queue;
use crate::reach::ReachArgs;
use crate::stop::StopSignals;
use crate::table::age;
use clap::Args;
use serde_json::{Value, json};
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use toolbus_base::terminal_line;
use toolbus_client::{BrokerError, Call, CallItem, MultiplexedClient, SendOptions};
use toolbus_mcp::{
    ClientHello, HostEvent, HostReply, HostRequest, MODERN_VERSION, Members, Outcome, Raw, Rpc, TaskWish, meta, raw,
};
use toolbus_protocol::{Body, ErrorCode, InboxMessage};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus call now --arg zone=Europe/Berlin
  toolbus call chart '{\"values\": [3, 1, 2]}' --out pictures
  echo '{\"text\": \"hello\"}' | toolbus call text_stats -
  toolbus task result $(toolbus call build --detach)

Exit code: 0 result of the tool, 1 error of the tool, 2 error of the bus or of the arguments, 130 cancelled.")]
pub struct CallArgs {
    /// The name of the tool, as listed by `toolbus tools`.
    tool: String,
    /// The arguments as a JSON object; `-` reads them from standard input.
    #[arg(value_name = "JSON|-", conflicts_with = "arg")]
    arguments: Option<String>,
    /// One argument. The tool's schema determines the type of the value. Give a list as a,b,c or repeat the name.
    #[arg(long, value_name = "NAME=VALUE")]
    arg: Vec<String>,
    /// Call the tool on this host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Role to act in.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// Deadline of the call, including the time to wait for a host that is away. Tasks have --ttl instead.
    #[arg(long, conflicts_with = "detach", value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// Fail at once if the host is away (TB0427), instead of waiting for it.
    #[arg(long)]
    fail_fast: bool,
    /// Folder for images and other files in the result; created if it does not exist.
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Run the call as a task: print the id of the task and exit. `toolbus task` shows its state and result.
    #[arg(long)]
    detach: bool,
    /// How long the task is kept after its start: 24h by default, 7d at most.
    #[arg(long, requires = "detach", value_parser = parse_duration, value_name = "DURATION")]
    ttl: Option<Duration>,
    /// Send the arguments without checking them against the tool's schema.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    reach: ReachArgs,
}

/// How long to wait for the reply to a cancelled call: a little longer than the host waits for the server. A reply
/// after that stays in the mailbox of a process that has exited.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);
const PROGRESS_TOKEN: &str = "toolbus-call";
const CANCELLED: u8 = 130;

pub async fn run(args: CallArgs) -> Result<ExitCode, Failure> {
    // Parse the arguments before connecting.
    let given = args.arguments.clone().map(read_arguments).transpose()?;
    let until = Instant::now() + args.deadline;
    let client = waiting::connect(&args, until).await?;
    let mut catalog = Catalog::fetch_for(&client, args.host.as_deref(), &args.tool).await?;
    let client = client.into_multiplexed();
    if args.host.is_some() {
        held_back::add(&mut catalog, &client, &args.tool).await?;
    }
    let tool = catalog.tool(&args.tool, client.client().me().role.as_deref())?;
    let arguments = take_arguments(&args, given, &tool)?;
    // Create the output folder first: if that fails, the tool must not run.
    let unusable = |source| Failure::OutFolder { folder: args.out.clone(), source };
    std::fs::create_dir_all(&args.out).map_err(unusable)?;
    let output = OutputOptions { tool: &args.tool, json: args.reach.json, out: &args.out };
    if args.detach {
        let wish = TaskWish { ttl_ms: args.ttl.map(|ttl| ttl.as_millis() as u64) };
        let fail_fast = is_fail_fast(&args, &tool);
        let params = params(&args.tool, arguments, toolbus_mcp::empty_object());
        let started = detach::start(&client, &tool, params, (wish, fail_fast), &output).await;
        client.close().await;
        return started;
    }
    let session = uuid::Uuid::new_v4().to_string();
    let ended = rounds(&client, &args, &tool, &session, (arguments, until)).await;
    // A call that never reached the host opened no session there.
    if !matches!(ended, Err(Failure::HostOffline { .. })) {
        let close = HostRequest::Close { session };
        // Wait only briefly for the receipt: a host that is away has no session to close.
        tokio::time::timeout(Duration::from_millis(500), send(&client, &tool.host.name, &close)).await.ok();
    }
    client.close().await;
    match ended? {
        Ended::Outcome(outcome) => report(&output, outcome),
        Ended::Cancelled => {
            print_error("cancelled");
            Ok(ExitCode::from(CANCELLED))
        }
    }
}

pub fn read_arguments(text: String) -> Result<Raw, Failure> {
    let mut text = text;
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(Failure::Stdin)?;
    }
    Ok(arguments::from_json(&text)?)
}

fn take_arguments(args: &CallArgs, given: Option<Raw>, tool: &KnownTool<'_>) -> Result<Raw, Failure> {
    let schema = tool.input_schema();
    let arguments = match given {
        Some(given) => given,
        None => arguments::from_pairs(&args.tool, &args.arg, &schema)?,
    };
    if !args.no_check {
        arguments::check(&args.tool, &arguments, &schema)?;
    }
    Ok(arguments)
}

/// Whether the call fails instead of waiting for a host that is away.
fn is_fail_fast(args: &CallArgs, tool: &KnownTool<'_>) -> bool {
    args.fail_fast || tool.server.fail_fast.contain(Some(&args.tool))
}

enum Ended {
    Outcome(Outcome),
    Cancelled,
}

/// Calls the tool, and again with the answers each time that it asks the person for input.
async fn rounds(
    client: &MultiplexedClient,
    args: &CallArgs,
    tool: &KnownTool<'_>,
    session: &str,
    (arguments, until): (Raw, Instant),
) -> Result<Ended, Failure> {
    let mut params = params(&args.tool, arguments, elicit::capabilities());
    for _ in 0..elicit::MAX_ROUNDS {
        let limit = until.saturating_duration_since(Instant::now());
        let outcome = match exchange(client, args, tool, session, (params.clone(), limit)).await? {
            Ended::Outcome(outcome) => outcome,
            Ended::Cancelled => return Ok(Ended::Cancelled),
        };
        let Some(input) = InputRequired::of(&outcome) else { return Ok(Ended::Outcome(outcome)) };
        let asking = tokio::time::timeout_at(until, input.ask(&args.tool, &params)).await;
        let late = |_| Failure::CallTimeout { tool: args.tool.clone(), limit: args.deadline };
        match asking.map_err(late)?? {
            Some(answered) => params = answered,
            None => return Ok(Ended::Cancelled),
        }
    }
    Err(Failure::BadReply(format!("{} asked for input {} times", args.tool, elicit::MAX_ROUNDS)))
}

async fn exchange(
    client: &MultiplexedClient,
    args: &CallArgs,
    tool: &KnownTool<'_>,
    session: &str,
    (params, limit): (Raw, Duration),
) -> Result<Ended, Failure> {
    let mut progress = Progress::new(args.reach.json);
    let fail_fast = is_fail_fast(args, tool);
    if fail_fast && !tool.host.online {
        return Err(Failure::HostOffline { tool: args.tool.clone(), host: tool.host.name.clone() });
    }
    let request = HostRequest::Rpc(Rpc {
        server: tool.server.name.clone(),
        session: session.to_owned(),
        client: ClientHello::modern(),
        method: "tools/call".into(),
        params: Some(params),
        task: None,
        hand_back: false,
    });
    let message = message(client, &request)?;
    // A signal right after the call was sent has to cancel it.
    let stop = StopSignals::listen()?;
    let mut call = client.start_call(&tool.host.name, message, limit).await?;
    if !tool.host.online {
        let (host, since) = (&tool.host.name, age(tool.host.since_ms));
        let position = queue::messages_ahead(client, host, &call.id())
            .await
            .map_or(String::new(), |ahead| format!(" at position {}", ahead + 1));
        progress.say(&format!("{host} is away (for {since}); waiting{position} until it is back, Ctrl-C cancels"));
    }
    let availability = Availability::new(tool.host.online, !fail_fast);
    let (notify, mut notices) = mpsc::channel(NOTICE_QUEUE);
    let fail_fast_guard = fail_fast.then_some(FailFast { client, host: &tool.host.name, availability: &availability });
    let following = follow(&mut call, stop, &mut progress, &mut notices, fail_fast_guard);
    let ended = tokio::select! {
        ended = following => ended,
        never = availability.watch(client, &tool.host.name, &notify) => match never {},
    };
    progress.finish();
    match ended {
        // Withdrawn by `FailFast::withdraw`.
        Err(Failure::Client(error)) if fail_fast && error.code() == Some(ErrorCode::Cancelled) => {
            Err(Failure::HostOffline { tool: args.tool.clone(), host: tool.host.name.clone() })
        }
        Err(Failure::Client(BrokerError::Timeout(_))) => Err(deadline_failure(args, &tool.host.name, &availability)),
        ended => ended,
    }
}

/// The error for a call whose deadline has passed.
fn deadline_failure(args: &CallArgs, host: &str, availability: &Availability) -> Failure {
    let (tool, host, limit) = (args.tool.clone(), host.to_owned(), args.deadline);
    if availability.broker_away() {
        Failure::BrokerAway { tool, limit }
    } else if availability.host_away() {
        Failure::HostAway { tool, host, limit, never_online: availability.host_never_online() }
    } else {
        Failure::CallTimeout { tool, limit }
    }
}

/// Waits for the reply, or for the end of a cancellation.
async fn follow(
    call: &mut Call,
    mut stop: StopSignals,
    progress: &mut Progress,
    notices: &mut mpsc::Receiver<String>,
    fail_fast_guard: Option<FailFast<'_>>,
) -> Result<Ended, Failure> {
    let mut exit_at = None;
    loop {
        let timeout = async {
            match exit_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            item = call.next() => match item {
                Some(CallItem::Event(body)) => show_event(&body, progress),
                // Withdrawn by our cancellation, before its host got it.
                Some(CallItem::Reply(Err(error))) if exit_at.is_some() && error.code() == Some(ErrorCode::Cancelled) => {
                    return Ok(Ended::Cancelled);
                }
                Some(CallItem::Reply(reply)) => return read_reply(reply),
                None => return Err(Failure::Client(BrokerError::Closed)),
            },
            Some(notice) = notices.recv() => {
                progress.say(&notice);
                if let Some(fail_fast_guard) = &fail_fast_guard {
                    fail_fast_guard.withdraw(call).await;
                }
            }
            () = stop.next() => {
                if exit_at.is_some() {
                    return Ok(Ended::Cancelled);
                }
                call.cancel();
                progress.stop();
                progress.say("cancelling; press Ctrl-C again to exit at once");
                exit_at = Some(Instant::now() + CANCEL_TIMEOUT);
            }
            () = timeout => return Ok(Ended::Cancelled),
        }
    }
}

/// Withdraws a call that must not wait for its host.
struct FailFast<'a> {
    client: &'a MultiplexedClient,
    host: &'a str,
    availability: &'a Availability,
}

impl FailFast<'_> {
    /// Withdraws the call if the host went away before it was pushed. A call that was pushed may have started, so its
    /// reply is awaited.
    async fn withdraw(&self, call: &Call) {
        if self.availability.host_away() && queue::was_never_pushed(self.client, self.host, &call.id()).await {
            call.cancel();
        }
    }
}

fn read_reply(reply: Result<InboxMessage, BrokerError>) -> Result<Ended, Failure> {
    let reply = reply?;
    let body = String::from_utf8_lossy(reply.body.as_bytes());
    Ok(match HostReply::parse(&*body)? {
        HostReply::Rpc(outcome) => Ended::Outcome(outcome),
        HostReply::Task(_) => return Err(Failure::BadReply("an unexpected task".to_owned())),
        HostReply::Cancelled | HostReply::HandedBack => Ended::Cancelled,
    })
}

fn show_event(body: &Body, progress: &mut Progress) {
    let text = String::from_utf8_lossy(body.as_bytes());
    let Ok(HostEvent::Notification { method, params, .. }) = HostEvent::parse(&*text) else { return };
    match method.as_str() {
        "notifications/progress" => progress.report(params.as_ref()),
        "notifications/message" => {
            let params = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok()).unwrap_or_default();
            let text = params["data"].as_str().map_or_else(|| params["data"].to_string(), str::to_owned);
            progress.say(&format!("{}: {}", params["level"].as_str().unwrap_or("log"), terminal_line(&text)));
        }
        _ => {}
    }
}

pub fn params(tool: &str, arguments: Raw, capabilities: Raw) -> Raw {
    let me = raw(&json!({"name": "toolbus", "title": "toolbus call", "version": env!("CARGO_PKG_VERSION")}));
    let mut meta_members = Members::default();
    for (name, value) in meta::modern(MODERN_VERSION, capabilities, Some(me)) {
        meta_members.set(name, value);
    }
    meta_members.set(meta::PROGRESS_TOKEN, raw(PROGRESS_TOKEN));
    let mut params = Members::default();
    params.set("name", raw(tool));
    params.set("arguments", arguments);
    params.set(meta::META, meta_members.into_raw());
    params.into_raw()
}

pub fn message(client: &MultiplexedClient, request: &HostRequest) -> Result<InboxMessage, Failure> {
    Ok(InboxMessage::new(client.client().me(), "mcp_request", Body::parse(request.to_json().into_bytes())?))
}

pub async fn send(client: &MultiplexedClient, host: &str, request: &HostRequest) -> Result<(), Failure> {
    let send = SendOptions { deadline: Some(Duration::from_secs(60)) };
    client.client().deliver_with(host, message(client, request)?, send).await?;
    Ok(())
}
