//! The guard as a program of its own, for this crate's tests; the product has it as a hidden command. With `--host` it
//! acts as the host: it starts a guarded server and waits, so that a test can kill it.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [flag, lifeline, dashes, command @ ..] if flag == "--lifeline" && dashes == "--" => {
            toolbus_upstream::guard_main(Path::new(lifeline), command)
        }
        [flag, command, args @ ..] if flag == "--host" => host(command, args),
        _ => {
            eprintln!("usage: upstream-guard --lifeline PATH -- COMMAND… | --host COMMAND…");
            ExitCode::from(2)
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn host(command: &OsString, args: &[OsString]) -> ExitCode {
    use toolbus_upstream::{ConnectionOptions, GuardCommand, ServerConfig, ServerConnection};
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let args: Vec<String> = args.iter().map(text).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let config = ServerConfig::stdio("hosted", text(command), &args);
    let Ok(program) = std::env::current_exe() else { return ExitCode::from(2) };
    let options =
        ConnectionOptions { guard: Some(GuardCommand { program, args: Vec::new() }), ..ConnectionOptions::default() };
    let (sender, _events) = tokio::sync::mpsc::channel(16);
    let opened = ServerConnection::open(&config, toolbus_mcp::Era::Legacy, &options, sender).await;
    println!("opened: {}", opened.is_ok());
    std::future::pending().await
}
