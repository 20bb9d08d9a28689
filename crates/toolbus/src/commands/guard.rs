//! `toolbus guard`: the process between a host and a stdio server, which ends the server when the host is gone. Hidden:
//! hosts start it.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct GuardArgs {
    /// The pipe whose end of file is the end of the host.
    #[arg(long, value_name = "PATH")]
    lifeline: PathBuf,
    /// The server.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(args: &GuardArgs) -> ExitCode {
    toolbus_upstream::guard_main(&args.lifeline, &args.command)
}
