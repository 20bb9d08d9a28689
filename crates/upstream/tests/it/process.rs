//! Server processes: what they inherit, and that none is left on any exit path.

use crate::support::{Server, TIMEOUT, fake, guarded, runs, soon, until, value};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, TransportConfig};

/// A server with a child and a grandchild in another session, all ignoring SIGTERM if requested. Each writes its pid to
/// a file, and none exits when its stdin is closed.
fn process_tree(folder: &Path, ignore_sigterm: bool) -> ServerConfig {
    let trap = if ignore_sigterm { "trap '' TERM; " } else { "" };
    let folder = folder.display();
    // Long enough for every test, and finite in case one of them fails.
    let wait_loop = "for i in $(seq 300); do sleep 0.2; done";
    let script = format!(
        "{trap}echo $$ > {folder}/server.pid
         sh -c '{trap}echo $$ > {folder}/child.pid; {wait_loop}' &
         setsid sh -c '{trap}echo $$ > {folder}/detached.pid; {wait_loop}' &
         {wait_loop}"
    );
    ServerConfig::stdio("family", "sh", &["-c", &script])
}

async fn pids(folder: &Path) -> Vec<u32> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    let all = || ["server.pid", "child.pid", "detached.pid"].map(read);
    until("all processes have started", || all().iter().all(Option::is_some)).await;
    all().into_iter().flatten().collect()
}

async fn assert_all_exit(pids: &[u32]) {
    assert!(!pids.is_empty());
    until("every process has exited", || !pids.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn close_terminates_the_whole_process_tree_even_if_it_ignores_sigterm() {
    for ignore_sigterm in [false, true] {
        let folder = tempfile::tempdir().expect("temporary directory");
        let server = Server::open(&process_tree(folder.path(), ignore_sigterm), Era::Legacy, &guarded()).await;
        let pids = pids(folder.path()).await;
        assert!(pids.iter().all(|pid| runs(*pid)));
        soon(server.connection.close()).await;
        assert_all_exit(&pids).await;
    }
}

#[tokio::test]
async fn dropping_the_last_handle_terminates_the_process_tree() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let server = Server::open(&process_tree(folder.path(), true), Era::Legacy, &guarded()).await;
    let pids = pids(folder.path()).await;
    let other = server.connection.clone();
    drop(server);
    assert!(pids.iter().all(|pid| runs(*pid)));
    drop(other);
    assert_all_exit(&pids).await;
}

#[tokio::test]
async fn a_killed_host_leaves_no_processes() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let TransportConfig::Stdio { command, args, .. } = process_tree(folder.path(), true).transport else {
        unreachable!()
    };
    let mut host = Command::new(env!("CARGO_BIN_EXE_upstream-guard"));
    host.arg("--host").arg(command).args(args).stdout(Stdio::piped());
    let mut host = host.spawn().expect("the host starts");
    let mut line = String::new();
    BufReader::new(host.stdout.take().expect("pipe")).read_line(&mut line).expect("a line of output");
    assert_eq!(line, "opened: true\n");
    let pids = pids(folder.path()).await;
    host.kill().expect("host is killed");
    host.wait().expect("host exits");
    assert_all_exit(&pids).await;
}

#[tokio::test]
async fn a_runtime_shutdown_leaves_no_processes() {
    for options in [guarded(), ConnectionOptions::default()] {
        let folder = tempfile::tempdir().expect("temporary directory");
        let config = process_tree(folder.path(), false);
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime is built");
                runtime.block_on(async {
                    let server = Server::open(&config, Era::Legacy, &options).await;
                    let pids = pids(folder.path()).await;
                    std::mem::forget(server.connection);
                    pids
                })
            });
            thread.join().expect("no panic")
        });
        // Without a guard only the process group can be signalled.
        let reachable = if options.guard.is_some() { &started[..] } else { &started[..2] };
        assert_all_exit(reachable).await;
        if let Some(pid) = rustix::process::Pid::from_raw(started[2] as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn orphans_of_an_exited_server_are_terminated() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let mut config = process_tree(folder.path(), true);
    let TransportConfig::Stdio { args, .. } = &mut config.transport else { unreachable!() };
    let end = args[1].rfind("for i").expect("script has the loop");
    args[1].replace_range(end.., "read line; exit 7");
    let server = Server::open(&config, Era::Legacy, &guarded()).await;
    let pids = pids(folder.path()).await;
    let started = Instant::now();
    let call = server.connection.start("leave", None).await.expect("sent");
    let error = soon(call.outcome()).await.expect_err("server exited");
    assert!(matches!(error, ServerError::Died { status: toolbus_upstream::ExitReason::Code(7), .. }), "{error:?}");
    assert!(started.elapsed() < TIMEOUT / 4);
    assert_all_exit(&pids).await;
}

#[tokio::test]
async fn the_signal_that_killed_a_server_is_reported() {
    for options in [guarded(), ConnectionOptions::default()] {
        let config = ServerConfig::stdio("victim", "sh", &["-c", "read line; kill -SEGV $$"]);
        let server = Server::open(&config, Era::Legacy, &options).await;
        let error = server.request("die", json!({})).await.expect_err("server exited");
        assert!(error.to_string().contains("killed by signal 11"), "{error}");
    }
}

#[tokio::test]
async fn a_server_gets_its_own_environment_and_nothing_of_the_hosts() {
    let mut config = fake("legacy");
    let TransportConfig::Stdio { env, cwd, .. } = &mut config.transport else { unreachable!() };
    env.insert("OWN".into(), "yes".into());
    *cwd = Some("/".into());
    for options in [guarded(), ConnectionOptions::default()] {
        let server = Server::open(&config, Era::Legacy, &options).await;
        let seen = value(server.call("environment", json!({})).await);
        assert_eq!(seen["OWN"], "yes");
        assert!(seen.get("PATH").is_some());
        // Cargo sets this variable for every test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert!(seen.get("CARGO_MANIFEST_DIR").is_none(), "{seen}");
    }
}

#[tokio::test]
async fn a_server_that_exits_at_end_of_input_is_closed_quickly() {
    let server = Server::fake().await;
    value(server.call("echo", json!({})).await);
    let started = Instant::now();
    soon(server.connection.close()).await;
    assert!(started.elapsed().as_millis() < 1_500, "{:?}", started.elapsed());
    assert!(matches!(server.connection.closed(), Some(ServerError::Closed { .. })));
}
