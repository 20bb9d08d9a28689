//! `toolbus init`: writes a commented toolbus.toml.

use crate::config::{FILE_NAME, TEMPLATE};
use crate::failure::Failure;
use crate::output::print_line;
use clap::Args;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Args)]
pub struct InitArgs {
    /// The file to write.
    #[arg(default_value = FILE_NAME, value_name = "FILE")]
    file: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
}

pub async fn run(args: InitArgs) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options.open(&args.file).and_then(|mut file| file.write_all(TEMPLATE.as_bytes()));
    match written {
        Ok(()) => print_line(&format!(
            "wrote {}\nnext: add your servers to it, then start them with `toolbus up`",
            args.file.display()
        )),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Failure::Exists { file: args.file }),
        Err(source) => Err(Failure::Write { file: args.file, source }),
    }
}
