//! The `toolbus` command. Each subcommand has a file under `commands`; what they share about reaching a broker is in
//! `reach`, how they fail is in `failure`.

mod arguments;
mod catalog;
mod commands;
mod config;
mod failure;
mod folders;
mod nearest;
mod progress;
mod reach;
mod schema;
mod show;
mod stop;
mod table;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// A durable message bus for agents and their tools.
#[derive(Parser)]
#[command(name = "toolbus", version, about, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start everything on this machine.
    Up(commands::broker::BrokerArgs),
    /// Start the broker: durable mailboxes behind a WebSocket.
    Broker(commands::broker::BrokerArgs),
    /// Put a message into an agent's mailbox and wait for the receipt.
    Send(commands::send::SendArgs),
    /// Read an agent's mailbox.
    Recv(commands::recv::RecvArgs),
    /// Ask an agent a question and wait for the answer.
    Ask(commands::ask::AskArgs),
    /// Show who is connected and what waits.
    Ps(commands::ps::PsArgs),
    /// The built-in MCP server, on stdin and stdout.
    #[command(hide = true)]
    DemoServer,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let serves = matches!(args.command, Command::Up(_) | Command::Broker(_));
    let filter = EnvFilter::try_from_env("TOOLBUS_LOG")
        .unwrap_or_else(|_| EnvFilter::new(if serves { "info" } else { "error" }));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    // One thread does a connection's whole work: on a bus, handing over between threads costs more than it gains.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&failure::Failure::Runtime(error)),
    };
    let outcome = runtime.block_on(async {
        match args.command {
            Command::Up(args) | Command::Broker(args) => commands::broker::run(args).await,
            Command::Send(args) => commands::send::run(args).await,
            Command::Recv(args) => commands::recv::run(args).await,
            Command::Ask(args) => commands::ask::run(args).await,
            Command::Ps(args) => commands::ps::run(args).await,
            Command::DemoServer => commands::demo_server::run().await,
        }
    });
    // A blocking read of standard input must not keep the process.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
