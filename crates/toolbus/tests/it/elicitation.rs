//! `toolbus call` at a terminal asks the person when the tool requests input.

use crate::mcp_process::python;
use crate::support::soon;
use crate::up::UpInstance;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

/// Both ends of a pseudo-terminal.
pub fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).expect("access to it");
    unlockpt(&ours).expect("a usable terminal");
    let name = ptsname(&ours, Vec::new()).expect("a name");
    let path = std::ffi::OsStr::from_bytes(name.as_bytes());
    let theirs = File::options().read(true).write(true).open(path).expect("the other end");
    (File::from(ours), theirs)
}

async fn hosting(era: &str) -> UpInstance {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../host/tests/it/fake_server.py");
    let config = serde_json::json!({"mcpServers": {"fake": {"command": python(), "args": [script, era]}}});
    std::fs::write(folder.path().join("mcp.json"), config.to_string()).expect("writable");
    UpInstance::start_in(folder, &["--mcp-config", "mcp.json"]).await
}

/// Calls a tool that asks for confirmation, with these keys typed. Returns standard output and the terminal's text.
async fn call_typing(instance: &UpInstance, keys: &[u8]) -> (String, String) {
    let (mut ours, theirs) = terminal();
    ours.write_all(keys).expect("the terminal buffers it");
    let mut call = instance.command(&["call", "ask", r#"{"question": "Really?"}"#, "--no-check"]);
    let clone = || Stdio::from(theirs.try_clone().expect("a descriptor"));
    call.stdin(clone()).stderr(clone()).stdout(Stdio::piped());
    let child = call.spawn().expect("the binary starts");
    drop((theirs, call));
    let output = soon("the call ends", child.wait_with_output()).await.expect("an exit status");
    let mut shown = Vec::new();
    // Ends with an error, because the other end is closed.
    ours.read_to_end(&mut shown).ok();
    (String::from_utf8(output.stdout).expect("text"), String::from_utf8_lossy(&shown).into_owned())
}

#[tokio::test]
async fn the_person_answers_a_tool_that_asks_in_both_eras() {
    for era in ["legacy", "modern"] {
        let instance = hosting(era).await;
        let (out, shown) = call_typing(&instance, b"\n").await;
        assert!(shown.contains("ask asks: Really?"), "{era}: {shown}");
        assert!(out.contains(r#""action": "accept""#), "{era}: {out} {shown}");
        let (out, shown) = call_typing(&instance, b"\x04").await;
        assert!(out.contains(r#""action": "decline""#), "{era}: {out} {shown}");
    }
}
