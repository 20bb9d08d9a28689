//! `toolbus bench`: measures calls of one tool on the caller's own path: latencies, rates, and where the time of a lone
//! call goes. It never chooses a tool that may have effects.

mod load;
mod report;

use super::call;
use crate::arguments;
use crate::catalog::{Catalog, KnownTool};
use crate::failure::Failure;
use crate::hosts_admin::ask;
use crate::output::print_line;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::stop::StopSignals;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use load::{Latencies, drive, timed};
use report::{Level, Parts, Report};
use std::convert::Infallible;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::MultiplexedClient;
use toolbus_mcp::{AdminRequest, CallList, ClientHello, HostReply, HostRequest, Outcome, Raw, Rpc};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus bench
  toolbus bench read_file --arg path=README.md --seconds 20
  toolbus bench search '{\"query\": \"rust\"}' --in-flight 1,8

The calls are those of `toolbus call`: they pass the same rules and limits, run at the host, and are journaled and audited
there. Without TOOL, the clock of the demo server is called. A tool that its server does not mark as read-only is called
only with --yes, since each call may have an effect.

Exit code: 0 measured, 2 a call failed or was refused, 130 cancelled.")]
pub struct BenchArgs {
    /// The name of the tool, as listed by `toolbus tools`.
    tool: Option<String>,
    /// The arguments as a JSON object; `-` reads them from standard input.
    #[arg(value_name = "JSON|-", conflicts_with = "arg")]
    arguments: Option<String>,
    /// One argument. The tool's schema determines the type of the value. Give a list as a,b,c or repeat the name.
    #[arg(long, value_name = "NAME=VALUE", requires = "tool")]
    arg: Vec<String>,
    /// Call the tool on this host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Role to act in.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    /// Duration of the whole measurement in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Numbers of concurrent calls to measure, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    in_flight: Vec<u32>,
    /// Call the tool although it may have effects.
    #[arg(long)]
    yes: bool,
    /// Send the arguments without checking them against the tool's schema.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    reach: ReachArgs,
}

/// The tool of the demo server that is called if none is named.
const DEMO_TOOL: &str = "now";
/// How long a call may take before the measurement fails.
const CALL_LIMIT: Duration = Duration::from_secs(60);
const CANCELLED: u8 = 130;

pub async fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    let given = args.arguments.clone().map(call::read_arguments).transpose()?;
    let client = args.reach.connect(LocalAgent::Worker, transient_agent(args.role.clone()), false).await?;
    let catalog = Catalog::fetch(&client, args.host.as_deref()).await?;
    let client = client.into_multiplexed();
    let name = args.tool.as_deref().unwrap_or(DEMO_TOOL);
    let tool = match args.tool {
        Some(_) => catalog.tool(name, client.client().me().role.as_deref())?,
        None => default_tool(&catalog)?,
    };
    if !tool.hints().contains(&"read-only") && !args.yes {
        return Err(Failure::MayHaveEffects { tool: name.to_owned() });
    }
    if !tool.host.online {
        return Err(Failure::HostOffline { tool: name.to_owned(), host: tool.host.name.clone() });
    }
    let schema = tool.input_schema();
    let arguments = given.map_or_else(|| arguments::from_pairs(name, &args.arg, &schema), Ok)?;
    if !args.no_check {
        arguments::check(name, &arguments, &schema)?;
    }
    let path = Path { client: &client, tool, name, arguments, session: uuid::Uuid::new_v4().to_string() };
    let mut stop = StopSignals::listen()?;
    let measured = tokio::select! {
        measured = measure(&path, &args) => Some(measured),
        () = stop.next() => None,
    };
    let close = HostRequest::Close { session: path.session.clone() };
    tokio::time::timeout(Duration::from_millis(500), call::send(&client, &tool.host.name, &close)).await.ok();
    client.close().await;
    let Some(measured) = measured else { return Ok(ExitCode::from(CANCELLED)) };
    let report = measured?;
    print_line(&if args.reach.json { report.as_json() } else { report.as_text() })?;
    Ok(ExitCode::SUCCESS)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected between 0.1 and 3600 seconds".to_owned())
}

fn default_tool(catalog: &Catalog) -> Result<KnownTool<'_>, Failure> {
    let read_only = || catalog.tools().filter(|tool| tool.hints().contains(&"read-only"));
    read_only()
        .find(|tool| tool.server.name == "demo" && tool.name() == DEMO_TOOL)
        .ok_or_else(|| Failure::NoBenchTool { read_only: read_only().map(|tool| tool.name()).collect() })
}

/// The way of a call from this process to the tool.
struct Path<'a> {
    client: &'a MultiplexedClient,
    tool: KnownTool<'a>,
    name: &'a str,
    arguments: Raw,
    session: String,
}

impl Path<'_> {
    /// A question that the broker answers itself. No agent has such a role.
    async fn ask_broker(&self) -> Result<(), Failure> {
        self.client.client().list_connected("toolbus-bench").await?;
        Ok(())
    }

    /// A question that the host answers itself.
    async fn ask_host(&self) -> Result<(), Failure> {
        let request = AdminRequest::CallsList { ended: false };
        ask::<CallList>(self.client, &self.tool.host.name, request).await.map(drop)
    }

    async fn call(&self) -> Result<(), Failure> {
        let request = HostRequest::Rpc(Rpc {
            server: self.tool.server.name.clone(),
            session: self.session.clone(),
            client: ClientHello::modern(),
            method: "tools/call".into(),
            params: Some(call::params(self.name, self.arguments.clone(), toolbus_mcp::empty_object())),
            task: None,
            hand_back: false,
        });
        let host = &self.tool.host.name;
        let reply = self.client.request_message(host, call::message(self.client, &request)?, CALL_LIMIT).await?;
        match HostReply::parse(&*String::from_utf8_lossy(reply.body.as_bytes()))? {
            HostReply::Rpc(Outcome::Result(result)) => self.check_result(&result),
            HostReply::Rpc(Outcome::Error(error)) => Err(Failure::refused_by_host(host, &error)),
            HostReply::Task(_) | HostReply::Cancelled | HostReply::HandedBack => {
                Err(Failure::BadReply("not the result of a call".to_owned()))
            }
        }
    }

    /// The time of a call that failed says nothing.
    fn check_result(&self, result: &Raw) -> Result<(), Failure> {
        let members = result.members().map_err(|error| Failure::BadReply(error.to_string()))?;
        if members.get("isError").is_some_and(|flag| flag.get() == "true") {
            return Err(Failure::ToolFailed { tool: self.name.to_owned() });
        }
        match members.text("resultType").as_deref() {
            Some("input_required") => Err(Failure::InputRequired { tool: self.name.to_owned() }),
            _ => Ok(()),
        }
    }
}

async fn measure(path: &Path<'_>, args: &BenchArgs) -> Result<Report, Failure> {
    // Opens the session at the server, and fails before the measurement if the call does.
    path.call().await?;
    let bar = progress_bar(args);
    let measured = tokio::select! {
        measured = measure_steps(path, args, &bar) => measured,
        never = advance(&bar) => match never {},
    };
    bar.finish_and_clear();
    measured
}

async fn measure_steps(path: &Path<'_>, args: &BenchArgs, bar: &ProgressBar) -> Result<Report, Failure> {
    let window = Duration::from_secs_f64(args.seconds / (args.in_flight.len() + 1) as f64);
    bar.set_message("parts of a call");
    // In turn, so that other load on the machines affects all of them.
    let (mut broker, mut host, mut lone) = (Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    while lone.is_empty() || begin.elapsed() < window {
        broker.push(timed(path.ask_broker()).await?);
        host.push(timed(path.ask_host()).await?);
        lone.push(timed(path.call()).await?);
    }
    let median = |times| Latencies::new(times, window).quantile(0.5);
    let parts = Parts::new(median(broker), median(host), median(lone));
    let mut levels = Vec::new();
    for in_flight in &args.in_flight {
        bar.set_message(format!("{in_flight} in flight"));
        levels.push(Level { in_flight: *in_flight, latencies: drive(*in_flight, window, || path.call()).await? });
    }
    let (tool, server, host) = (path.name, &path.tool.server.name, &path.tool.host.name);
    Ok(Report { tool: tool.to_owned(), server: server.clone(), host: host.clone(), levels, parts })
}

/// A bar of the time, since the number of calls is not known in advance.
fn progress_bar(args: &BenchArgs) -> ProgressBar {
    if args.reach.json || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32.cyan/blue} {elapsed} {wide_msg}").expect("the template is valid");
    ProgressBar::new((args.seconds * 1e3) as u64).with_style(style)
}

async fn advance(bar: &ProgressBar) -> Infallible {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        bar.set_position(bar.elapsed().as_millis() as u64);
    }
}
