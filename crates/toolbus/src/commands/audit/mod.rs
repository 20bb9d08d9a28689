//! `toolbus audit`: verifies, seals and prints the audit logs.

mod init_seal;
mod status;
mod tail;
mod verify;

use crate::failure::Failure;
use crate::host_state::StateArgs;
use clap::{Args, Subcommand};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus audit verify
  toolbus audit verify --expect 6f0e…       (a hash printed by an earlier run)
  toolbus audit init-seal                   (prints a key, once; keep it on another machine)
  TOOLBUS_AUDIT_KEY=52a1… toolbus audit verify --data copy-of-the-data-folder
  toolbus audit tail -f")]
pub struct AuditArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Verify the hash chain: detects changed, removed, reordered and truncated lines. With a key, also verify the
    /// seals: detects a log that was rewritten as a whole.
    Verify(verify::VerifyArgs),
    /// Start sealing the logs that are not sealed yet, and print the key for `verify`. It is shown once.
    InitSeal(FolderArgs),
    /// Show the size of each log, whether it is sealed, and how far it was shipped.
    Status(FolderArgs),
    /// Print the last lines.
    Tail(tail::TailArgs),
}

#[derive(Args)]
struct FolderArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub async fn run(args: AuditArgs) -> Result<(), Failure> {
    match args.action {
        Action::Verify(args) => verify::run(&args),
        Action::InitSeal(args) => init_seal::run(&args),
        Action::Status(args) => status::run(&args),
        Action::Tail(args) => tail::run(&args).await,
    }
}
