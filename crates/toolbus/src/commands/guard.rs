//! `toolbus guard`: a process between a host and a stdio server that ends the server when the host exits. Hidden,
//! because hosts start it.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct GuardArgs {
    /// A pipe that the host holds open; end of file means that the host has exited.
    #[arg(long, value_name = "PATH")]
    lifeline: PathBuf,
    /// The command of the server.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(args: &GuardArgs) -> ExitCode {
    toolbus_upstream::guard_main(&args.lifeline, &args.command)
}
