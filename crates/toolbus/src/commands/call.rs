//! `toolbus call`: one call of one tool, over the bus to the host that has it.
//!
//! The exit code says how it ended: 0 the tool's result, 1 the tool's or its server's error, 2 anything else (the bus,
//! the arguments), 130 cancelled by Ctrl-C or SIGTERM.

use super::outcome::{Reader, report};
use super::{detach, parse_duration};
use crate::arguments;
use crate::around::{Around, SENTENCES};
use crate::catalog::{Catalog, ToolSeen};
use crate::failure::Failure;
use crate::progress::{Progress, one_line};
use crate::queue;
use crate::reach::{LocalAgent, ReachArgs, passing_agent};
use crate::stop::StopWishes;
use crate::table::age;
use clap::Args;
use serde_json::{Value, json};
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
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

Exit code: 0 the tool's result, 1 an error of the tool, 2 an error of the bus or of the arguments, 130 cancelled.")]
pub struct CallArgs {
    /// The tool, as `toolbus tools` shows it.
    tool: String,
    /// The arguments as a JSON object; `-` reads them from standard input.
    #[arg(value_name = "JSON|-", conflicts_with = "arg")]
    arguments: Option<String>,
    /// One argument. The tool's schema says which type the value has. A list takes a,b,c, or the name several times.
    #[arg(long, value_name = "NAME=VALUE")]
    arg: Vec<String>,
    /// Call the tool of this host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Role to act in.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// How long the call may take, waiting for a host that is away included. A task has --ttl instead.
    #[arg(long, conflicts_with = "detach", value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// Give up at once if the host is away (TB0427), instead of waiting for it.
    #[arg(long)]
    fail_fast: bool,
    /// Folder for images and other files in the result; made if it is not there.
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Leave the call to the host: print the id of a task and end. `toolbus task` shows what becomes of it.
    #[arg(long)]
    detach: bool,
    /// How long the task is kept, from its beginning: 24h unless it is said, 7d at most.
    #[arg(long, requires = "detach", value_parser = parse_duration, value_name = "DURATION")]
    ttl: Option<Duration>,
    /// Send the arguments as they are, without checking them against the tool's schema.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    reach: ReachArgs,
}

/// How long a cancelled call may still bring its end: a little more than the host gives the server. An end that nobody
/// waits for would lie in the mailbox of a command that is gone.
const CANCEL_PATIENCE: Duration = Duration::from_secs(3);
const PROGRESS_TOKEN: &str = "toolbus-call";
const CANCELLED: u8 = 130;

pub async fn run(args: CallArgs) -> Result<ExitCode, Failure> {
    // Before anything is sent: a body that can't be read is nobody else's business.
    let given = args.arguments.clone().map(read_arguments).transpose()?;
    let client = args.reach.connect(LocalAgent::Worker, passing_agent(args.role.clone()), true).await?;
    let catalog = Catalog::fetch(&client, args.host.as_deref()).await?;
    let tool = catalog.tool(&args.tool, client.me().role.as_deref())?;
    let arguments = take_arguments(&args, given, &tool)?;
    // A result that can't be kept is found out about before there is one.
    let unusable = |source| Failure::OutFolder { folder: args.out.clone(), source };
    std::fs::create_dir_all(&args.out).map_err(unusable)?;
    let client = client.into_multiplexed();
    let reader = Reader { tool: &args.tool, json: args.reach.json, out: &args.out };
    if args.detach {
        let wish = TaskWish { ttl_ms: args.ttl.map(|ttl| ttl.as_millis() as u64) };
        let hasty = is_hasty(&args, &tool);
        let begun = detach::begin(&client, &tool, params(&args.tool, arguments), (wish, hasty), &reader).await;
        client.close().await;
        return begun;
    }
    let session = uuid::Uuid::new_v4().to_string();
    let ended = exchange(&client, &args, &tool, &session, arguments).await;
    // What never reached the host leaves nothing to close there.
    if !matches!(ended, Err(Failure::HostOffline { .. })) {
        let close = HostRequest::Close { session };
        // Without a wait for the receipt: a host that is away has nothing to close.
        tokio::time::timeout(Duration::from_millis(500), send(&client, &tool.host.name, &close)).await.ok();
    }
    client.close().await;
    match ended? {
        Ended::Outcome(outcome) => report(&reader, outcome),
        Ended::Cancelled => {
            eprintln!("cancelled");
            Ok(ExitCode::from(CANCELLED))
        }
    }
}

fn read_arguments(text: String) -> Result<Raw, Failure> {
    let mut text = text;
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(Failure::Stdin)?;
    }
    Ok(arguments::from_json(&text)?)
}

fn take_arguments(args: &CallArgs, given: Option<Raw>, tool: &ToolSeen<'_>) -> Result<Raw, Failure> {
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

/// Whether the call is not to wait for its host.
fn is_hasty(args: &CallArgs, tool: &ToolSeen<'_>) -> bool {
    args.fail_fast || tool.server.fail_fast.contain(Some(&args.tool))
}

enum Ended {
    Outcome(Outcome),
    Cancelled,
}

async fn exchange(
    client: &MultiplexedClient,
    args: &CallArgs,
    tool: &ToolSeen<'_>,
    session: &str,
    arguments: Raw,
) -> Result<Ended, Failure> {
    let mut progress = Progress::new(args.reach.json);
    let hasty = is_hasty(args, tool);
    if hasty && !tool.host.online {
        return Err(Failure::HostOffline { tool: args.tool.clone(), host: tool.host.name.clone() });
    }
    let request = HostRequest::Rpc(Rpc {
        server: tool.server.name.clone(),
        session: session.to_owned(),
        client: ClientHello::modern(),
        method: "tools/call".into(),
        params: Some(params(&args.tool, arguments)),
        task: None,
    });
    let message = message(client, &request)?;
    let mut call = client.start_call(&tool.host.name, message, args.deadline).await?;
    if !tool.host.online {
        let (host, since) = (&tool.host.name, age(tool.host.since_ms));
        let position = queue::ahead(client, host, &call.id())
            .await
            .map_or(String::new(), |ahead| format!(" at position {}", ahead + 1));
        progress.say(&format!("{host} is away (for {since}); waiting{position} until it is back, Ctrl-C gives up"));
    }
    let around = Around::new(tool.host.online, !hasty);
    let (say, mut sentences) = mpsc::channel(SENTENCES);
    let haste = hasty.then_some(Haste { client, host: &tool.host.name, around: &around });
    let following = follow(&mut call, &mut progress, &mut sentences, haste);
    let ended = tokio::select! {
        ended = following => ended,
        never = around.watch(client, &tool.host.name, &say) => match never {},
    };
    progress.finish();
    match ended {
        // Taken back, as it was not to wait.
        Err(Failure::Client(error)) if hasty && error.code() == Some(ErrorCode::Cancelled) => {
            Err(Failure::HostOffline { tool: args.tool.clone(), host: tool.host.name.clone() })
        }
        Err(Failure::Client(BrokerError::Timeout(_))) => Err(missed(args, &tool.host.name, &around)),
        ended => ended,
    }
}

/// What it means that the deadline passed.
fn missed(args: &CallArgs, host: &str, around: &Around) -> Failure {
    let (tool, host, limit) = (args.tool.clone(), host.to_owned(), args.deadline);
    if around.broker_away() {
        Failure::BrokerAway { tool, limit }
    } else if around.host_away() {
        Failure::HostAway { tool, host, limit, never_there: around.never_there() }
    } else {
        Failure::CallTimeout { tool, limit }
    }
}

/// Until the reply, or until nobody wants to wait for it any more.
async fn follow(
    call: &mut Call,
    progress: &mut Progress,
    sentences: &mut mpsc::Receiver<String>,
    haste: Option<Haste<'_>>,
) -> Result<Ended, Failure> {
    let mut stop = StopWishes::listen()?;
    let mut give_up = None;
    loop {
        let patience = async {
            match give_up {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            item = call.next() => match item {
                Some(CallItem::Event(body)) => show_event(&body, progress),
                Some(CallItem::Reply(reply)) => return read_reply(reply),
                None => return Err(Failure::Client(BrokerError::Closed)),
            },
            Some(sentence) = sentences.recv() => {
                progress.say(&sentence);
                if let Some(haste) = &haste {
                    haste.take_back(call).await;
                }
            }
            () = stop.next() => {
                if give_up.is_some() {
                    return Ok(Ended::Cancelled);
                }
                call.cancel();
                progress.stop();
                progress.say("cancelling; Ctrl-C again leaves at once");
                give_up = Some(tokio::time::Instant::now() + CANCEL_PATIENCE);
            }
            () = patience => return Ok(Ended::Cancelled),
        }
    }
}

/// For a call that is not to wait for its host.
struct Haste<'a> {
    client: &'a MultiplexedClient,
    host: &'a str,
    around: &'a Around,
}

impl Haste<'_> {
    /// What the host never had is taken back once it has left. What it had may have begun, and is waited for.
    async fn take_back(&self, call: &Call) {
        if self.around.host_away() && queue::is_untouched(self.client, self.host, &call.id()).await {
            call.cancel();
        }
    }
}

fn read_reply(reply: Result<InboxMessage, BrokerError>) -> Result<Ended, Failure> {
    let reply = reply?;
    let body = String::from_utf8_lossy(reply.body.as_bytes());
    Ok(match HostReply::parse(&body)? {
        HostReply::Rpc(outcome) => Ended::Outcome(outcome),
        HostReply::Task(_) => return Err(Failure::BadReply("a task where none was asked for".to_owned())),
        HostReply::Cancelled => Ended::Cancelled,
    })
}

fn show_event(body: &Body, progress: &mut Progress) {
    let text = String::from_utf8_lossy(body.as_bytes());
    let Ok(HostEvent::Notification { method, params, .. }) = HostEvent::parse(&text) else { return };
    match method.as_str() {
        "notifications/progress" => progress.report(params.as_deref()),
        "notifications/message" => {
            let params = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok()).unwrap_or_default();
            let text = params["data"].as_str().map_or_else(|| params["data"].to_string(), str::to_owned);
            progress.say(&format!("{}: {}", params["level"].as_str().unwrap_or("log"), one_line(&text)));
        }
        _ => {}
    }
}

fn params(tool: &str, arguments: Raw) -> Raw {
    let me = raw(&json!({"name": "toolbus", "title": "toolbus call", "version": env!("CARGO_PKG_VERSION")}));
    let mut words = Members::default();
    // Nothing is promised that a command without a dialogue could not keep.
    for (name, value) in meta::modern(MODERN_VERSION, toolbus_mcp::empty_object(), Some(me)) {
        words.set(name, value);
    }
    words.set(meta::PROGRESS_TOKEN, raw(PROGRESS_TOKEN));
    let mut params = Members::default();
    params.set("name", raw(tool));
    params.set("arguments", arguments);
    params.set(meta::META, words.to_raw());
    params.to_raw()
}

fn message(client: &MultiplexedClient, request: &HostRequest) -> Result<InboxMessage, Failure> {
    Ok(InboxMessage::new(client.client().me(), "mcp_request", Body::parse(request.to_json())?))
}

async fn send(client: &MultiplexedClient, host: &str, request: &HostRequest) -> Result<(), Failure> {
    let send = SendOptions { deadline: Some(Duration::from_secs(60)) };
    client.client().deliver_with(host, message(client, request)?, send).await?;
    Ok(())
}
