//! The `toolbus` command. Each subcommand has a file under `commands`; `reach` holds the shared connection options,
//! `failure` the errors and their hints.

// Texts of others must not control the terminal: `output` prints.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod availability;
mod banner;
mod busy_poll;
mod catalog;
mod cluster;
mod commands;
mod config;
mod endpoint;
mod failure;
mod folders;
mod frontend_bus;
mod held_back;
mod host_state;
mod hosting;
mod hosts_admin;
mod no_broker;
mod output;
mod own_host;
mod pools;
mod progress;
mod queue;
mod reach;
mod reload;
mod roles;
mod schema;
mod schema_text;
mod send_rules;
mod show;
mod stop;
mod table;

use busy_poll::BusyPoll;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// A call makes hundreds of small, short-lived allocations, for which the system's allocator takes several times the
/// instructions.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Give agents anywhere the tools that only one machine can run.
#[derive(Parser)]
#[command(name = "toolbus", version = env!("TOOLBUS_VERSION"), about, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start broker, host and MCP endpoint in one process.
    Up(commands::up::UpArgs),
    /// Write a commented toolbus.toml.
    Init(commands::init::InitArgs),
    /// List the tools of all hosts.
    Tools(commands::tools::ToolsArgs),
    /// Call a tool.
    Call(commands::call::CallArgs),
    /// Measure calls of a tool: latencies, rates, and where the time goes.
    Bench(commands::bench::BenchArgs),
    /// Manage tasks: calls that run detached from their caller, started with `call --detach` or by MCP clients.
    Task(commands::task::TaskArgs),
    /// Serve MCP on stdin and stdout, with the tools of all hosts.
    Connect(commands::connect::ConnectArgs),
    /// Run MCP servers on this machine and offer their tools on the bus.
    Host(commands::host::HostArgs),
    /// Start the broker without a host: durable mailboxes behind a WebSocket, and the MCP endpoint.
    Broker(commands::broker::BrokerCommandArgs),
    /// Move the data of a stopped broker into a cluster on NATS, or back.
    Migrate(commands::migrate::MigrateArgs),
    /// Manage the agents that may connect, their roles and their tokens.
    Agent(commands::agent::AgentArgs),
    /// Explain the rules of toolbus.toml.
    #[command(subcommand)]
    Policy(commands::policy::PolicyCommand),
    /// Show connections, hosts and mailboxes.
    Ps(commands::ps::PsArgs),
    /// List the calls that are queued or running, or cancel one.
    Calls(commands::calls::CallsArgs),
    /// Show dead letters, and retry or drop them.
    Dead(commands::dead::DeadArgs),
    /// Send a message to an agent's mailbox and wait for the receipt.
    Send(commands::send::SendArgs),
    /// Read an agent's mailbox.
    Recv(commands::recv::RecvArgs),
    /// Send a question to an agent and wait for the answer.
    Ask(commands::ask::AskArgs),
    /// List the calls that wait for approval, and approve or deny them.
    Approvals(commands::approvals::ApprovalsArgs),
    /// Pin tools to their definitions, and review changed ones.
    Pin(commands::pin::PinArgs),
    /// Verify, seal and read the audit logs.
    Audit(commands::audit::AuditArgs),
    /// Serve the built-in demo MCP server on stdin and stdout.
    #[command(hide = true)]
    DemoServer,
    /// Supervise a stdio server, and end it when its host exits.
    #[command(hide = true)]
    Guard(commands::guard::GuardArgs),
}

/// The exit code of a call without an answer of the tool; 1 is an error of the tool.
const NO_ANSWER: u8 = 2;
/// The exit code of `policy check` if there is no decision; 0, 1 and 2 are allow, deny and ask.
const NO_DECISION: u8 = 3;

fn main() -> ExitCode {
    let command = match Args::try_parse() {
        Ok(args) => args.command,
        Err(mut error) => {
            suggest_no_hidden_command(&mut error);
            error.print().ok();
            // clap exits with 2 on wrong usage, but for `policy check` 2 is the decision "ask".
            let is_policy = std::env::args_os().nth(1).is_some_and(|word| word == "policy");
            let code = if is_policy && error.use_stderr() { NO_DECISION.into() } else { error.exit_code() };
            return ExitCode::from(u8::try_from(code).unwrap_or(1));
        }
    };
    // The guard needs no runtime, and must not fail because one can't be built.
    if let Command::Guard(args) = &command {
        return commands::guard::run(args);
    }
    let default_filter = match command {
        // The client of NATS reports each connection; its problems are reported by the cluster.
        Command::Up(_) | Command::Broker(_) | Command::Host(_) => "info,async_nats=warn",
        Command::Connect(_) => "warn",
        _ => "error",
    };
    let filter = EnvFilter::try_from_env("TOOLBUS_LOG").unwrap_or_else(|_| EnvFilter::new(default_filter));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    let log = log.with_writer(output::LogWriter { has_colours: colours });
    // With standard error closed, reporting a write error of the log there would panic.
    log.log_internal_errors(false).init();
    // Single-threaded: handing a message from thread to thread costs more than the parallelism gains.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let busy_poll = matches!(command, Command::Up(_)).then(|| BusyPoll::install(&mut builder)).flatten();
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&failure::Failure::Runtime(error)),
    };
    busy_poll.map(|busy_poll| runtime.spawn(busy_poll.run()));
    let failed = match command {
        Command::Call(_) | Command::Bench(_) | Command::Task(_) => Some(NO_ANSWER),
        Command::Policy(_) => Some(NO_DECISION),
        _ => None,
    };
    let outcome = runtime.block_on(run(command));
    // A blocking read of standard input must not keep the process alive.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            let code = failure::report(&error);
            failed.map_or(code, ExitCode::from)
        }
    }
}

/// clap also suggests hidden commands, which are not for users.
fn suggest_no_hidden_command(error: &mut clap::Error) {
    let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) else { return };
    let command = Args::command();
    let is_hidden = |name: &String| command.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    let shown: Vec<String> = names.into_iter().filter(|name| !is_hidden(name)).collect();
    if shown.is_empty() {
        // An empty list would leave a blank line.
        error.remove(ContextKind::Suggested);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
    }
}

async fn run(command: Command) -> Result<ExitCode, failure::Failure> {
    let done = match command {
        Command::Call(args) => return commands::call::run(args).await,
        Command::Bench(args) => return commands::bench::run(args).await,
        Command::Task(args) => return commands::task::run(args).await,
        Command::Policy(command) => return commands::policy::run(command),
        Command::Up(args) => commands::up::run(args).await,
        Command::Init(args) => commands::init::run(args).await,
        Command::Tools(args) => commands::tools::run(args).await,
        Command::Connect(args) => commands::connect::run(args).await,
        Command::Host(args) => commands::host::run(args).await,
        Command::Broker(args) => commands::broker::run(args).await,
        Command::Migrate(args) => commands::migrate::run(args).await,
        Command::Agent(args) => commands::agent::run(args),
        Command::Ps(args) => commands::ps::run(args).await,
        Command::Calls(args) => commands::calls::run(args).await,
        Command::Dead(args) => commands::dead::run(args).await,
        Command::Send(args) => commands::send::run(args).await,
        Command::Recv(args) => commands::recv::run(args).await,
        Command::Ask(args) => commands::ask::run(args).await,
        Command::Approvals(args) => commands::approvals::run(args).await,
        Command::Pin(args) => commands::pin::run(args).await,
        Command::Audit(args) => commands::audit::run(args).await,
        Command::DemoServer => commands::demo_server::run().await,
        Command::Guard(args) => return Ok(commands::guard::run(&args)),
    };
    done.map(|()| ExitCode::SUCCESS)
}
