//! Processes: what they inherit, and that nothing of them is left on any way out.

use crate::support::{PATIENCE, Server, fake, guarded, runs, soon, until, value};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, TransportConfig};

/// A server with a child, a grandchild in another session, and all of them deaf to SIGTERM if so wished. Each writes its
/// pid into a file, and none leaves when its stdin is closed.
fn family(folder: &Path, deaf: bool) -> ServerConfig {
    let trap = if deaf { "trap '' TERM; " } else { "" };
    let folder = folder.display();
    // Long enough for every test, and an end if one of them fails.
    let forever = "for i in $(seq 300); do sleep 0.2; done";
    let script = format!(
        "{trap}echo $$ > {folder}/server.pid
         sh -c '{trap}echo $$ > {folder}/child.pid; {forever}' &
         setsid sh -c '{trap}echo $$ > {folder}/stranger.pid; {forever}' &
         {forever}"
    );
    ServerConfig::stdio("family", "sh", &["-c", &script])
}

async fn pids(folder: &Path) -> Vec<u32> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    let all = || ["server.pid", "child.pid", "stranger.pid"].map(read);
    until("all processes have started", || all().iter().all(Option::is_some)).await;
    all().into_iter().flatten().collect()
}

async fn all_end(pids: &[u32]) {
    assert!(!pids.is_empty());
    until("every process has ended", || !pids.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn close_ends_the_whole_family_even_if_it_is_deaf() {
    for deaf in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::open(&family(folder.path(), deaf), Era::Legacy, &guarded()).await;
        let pids = pids(folder.path()).await;
        assert!(pids.iter().all(|pid| runs(*pid)));
        soon(server.connection.close()).await;
        all_end(&pids).await;
    }
}

#[tokio::test]
async fn the_last_handle_that_is_dropped_ends_the_family() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::open(&family(folder.path(), true), Era::Legacy, &guarded()).await;
    let pids = pids(folder.path()).await;
    let other = server.connection.clone();
    drop(server);
    assert!(pids.iter().all(|pid| runs(*pid)));
    drop(other);
    all_end(&pids).await;
}

#[tokio::test]
async fn a_host_that_is_killed_takes_the_family_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let TransportConfig::Stdio { command, args, .. } = family(folder.path(), true).transport else { unreachable!() };
    let mut host = Command::new(env!("CARGO_BIN_EXE_upstream-guard"));
    host.arg("--host").arg(command).args(args).stdout(Stdio::piped());
    let mut host = host.spawn().expect("the host starts");
    let mut line = String::new();
    BufReader::new(host.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "opened: true\n");
    let pids = pids(folder.path()).await;
    host.kill().expect("it runs");
    host.wait().expect("it ends");
    all_end(&pids).await;
}

#[tokio::test]
async fn a_runtime_that_is_shut_down_leaves_no_family() {
    for options in [guarded(), ConnectionOptions::default()] {
        let folder = tempfile::tempdir().expect("a folder");
        let config = family(folder.path(), false);
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let server = Server::open(&config, Era::Legacy, &options).await;
                    let pids = pids(folder.path()).await;
                    std::mem::forget(server.connection);
                    pids
                })
            });
            thread.join().expect("no panic")
        });
        // Without a guard only the group can be reached.
        let reachable = if options.guard.is_some() { &started[..] } else { &started[..2] };
        all_end(reachable).await;
        if let Some(pid) = rustix::process::Pid::from_raw(started[2] as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn what_a_server_leaves_behind_when_it_ends_is_ended_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = family(folder.path(), true);
    let TransportConfig::Stdio { args, .. } = &mut config.transport else { unreachable!() };
    let end = args[1].rfind("for i").expect("the loop");
    args[1].replace_range(end.., "read line; exit 7");
    let server = Server::open(&config, Era::Legacy, &guarded()).await;
    let pids = pids(folder.path()).await;
    let started = Instant::now();
    let call = server.connection.start("leave", None).await.expect("sent");
    let error = soon(call.outcome()).await.expect_err("it left");
    assert!(matches!(error, ServerError::Died { status: toolbus_upstream::ExitReason::Code(7), .. }), "{error:?}");
    assert!(started.elapsed() < PATIENCE / 4);
    all_end(&pids).await;
}

#[tokio::test]
async fn a_signal_that_ends_the_server_is_told() {
    for options in [guarded(), ConnectionOptions::default()] {
        let config = ServerConfig::stdio("victim", "sh", &["-c", "read line; kill -SEGV $$"]);
        let server = Server::open(&config, Era::Legacy, &options).await;
        let error = server.request("die", json!({})).await.expect_err("it died");
        assert!(error.to_string().contains("ended by signal 11"), "{error}");
    }
}

#[tokio::test]
async fn a_server_gets_its_own_environment_and_nothing_of_ours() {
    let mut config = fake("legacy");
    let TransportConfig::Stdio { env, cwd, .. } = &mut config.transport else { unreachable!() };
    env.insert("OWN".into(), "yes".into());
    *cwd = Some("/".into());
    for options in [guarded(), ConnectionOptions::default()] {
        let server = Server::open(&config, Era::Legacy, &options).await;
        let seen = value(server.call("environment", json!({})).await);
        assert_eq!(seen["OWN"], "yes");
        assert!(seen.get("PATH").is_some());
        // Cargo puts this into the environment of every test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert!(seen.get("CARGO_MANIFEST_DIR").is_none(), "{seen}");
    }
}

#[tokio::test]
async fn a_server_that_leaves_at_the_end_of_its_input_is_closed_at_once() {
    let server = Server::fake().await;
    value(server.call("echo", json!({})).await);
    let started = Instant::now();
    soon(server.connection.close()).await;
    assert!(started.elapsed().as_millis() < 1_500, "{:?}", started.elapsed());
    assert!(matches!(server.connection.closed(), Some(ServerError::Closed { .. })));
}
