//! `toolbus init`: writes a commented toolbus.toml.

use crate::config::{FILE_NAME, TEMPLATE};
use crate::failure::Failure;
use crate::output::print_line;
use clap::Args;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use toolbus_base::replace_file_with_mode;

#[derive(Args)]
pub struct InitArgs {
    /// The file to write.
    #[arg(default_value = FILE_NAME, value_name = "FILE")]
    file: PathBuf,
    /// Replace an existing file, or a link.
    #[arg(long)]
    force: bool,
}

pub async fn run(args: InitArgs) -> Result<(), Failure> {
    match write(&args) {
        Ok(()) => print_line(&format!(
            "wrote {}\nnext: add your servers to it, then start them with `toolbus up`",
            args.file.display()
        )),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Failure::Exists { file: args.file }),
        Err(source) => Err(Failure::Write { file: args.file, source }),
    }
}

/// What is written is readable by all but writable only by its owner, also with umask 000: `up` refuses a file that all
/// users can write. A replaced link is not followed, because another user may have planted it.
fn write(args: &InitArgs) -> io::Result<()> {
    const MODE: u32 = 0o644;
    if args.force {
        return replace_file_with_mode(&args.file, TEMPLATE.as_bytes(), MODE);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&args.file)?;
    file.write_all(TEMPLATE.as_bytes())
}
