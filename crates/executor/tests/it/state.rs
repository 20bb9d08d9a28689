//! The journal of a host, in memory and in a state folder: no call has two effects.

use crate::bus::{Bus, Relay, TOKEN};
use crate::peers::{HOST, RawWorker};
use crate::tools::{Behaviour, Toolbox, echo};
use crate::{eventually, soon};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use toolbus_client::AgentRef;
use toolbus_executor::{CancellationToken, McpProxyError, McpProxyHost, McpProxyHostOptions};

/// A host on a runtime of its own, so that all its tasks can be aborted together, as by a crash.
struct CrashingHost(Option<Runtime>);

impl CrashingHost {
    fn start(url: &str, toolbox: &Arc<Toolbox>, options: McpProxyHostOptions) -> Self {
        let host = McpProxyHost::new(url, AgentRef::new(HOST), TOKEN, Arc::clone(toolbox) as _, options);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(async move { host.serve_supervised(CancellationToken::new()).await.expect("it never ends") });
        Self(Some(runtime))
    }

    /// Returns when its tasks are gone.
    async fn crash(mut self) {
        let runtime = self.0.take().expect("it runs");
        let ending = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        soon("the end of its tasks", ending).await.expect("no panic");
    }
}

impl Drop for CrashingHost {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn gated() -> (Arc<Semaphore>, Arc<Toolbox>) {
    let gate = Arc::new(Semaphore::new(0));
    let toolbox = Toolbox::with("gate", Behaviour::Gate(Arc::clone(&gate)));
    toolbox.put("echo", Behaviour::Echo);
    (gate, toolbox)
}

fn in_folder(folder: &Path) -> McpProxyHostOptions {
    McpProxyHostOptions::default().with_state(folder)
}

async fn interrupted(options: impl Fn() -> McpProxyHostOptions) -> (Value, u32) {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let first = CrashingHost::start(&bus.url(), &toolbox, options());
    let worker = Arc::new(RawWorker::connect(&bus, AgentRef::new("w#mcp")).await);
    let caller = Arc::clone(&worker);
    let calling =
        tokio::spawn(async move { caller.request(json!({"op": "call", "tool": "gate", "arguments": "{}"})).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    first.crash().await;
    gate.add_permits(8);
    let _second = CrashingHost::start(&bus.url(), &toolbox, options());
    let reply = soon("a reply", calling).await.expect("no panic");
    // The next host works.
    let next = soon("a reply", worker.request(json!({"op": "call", "tool": "echo", "arguments": "{}"}))).await;
    assert_eq!(next["result"]["result"], echo("echo", "{}"));
    (reply, toolbox.started() - 1)
}

fn assert_outcome_unknown(reply: &Value) {
    let error = reply["error"].as_str().expect("an error");
    assert!(error.contains("whether it had an effect is unknown"), "{error}");
}

#[tokio::test]
async fn a_call_that_was_running_in_a_crash_is_not_run_again_with_a_state_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let (reply, started) = interrupted(|| in_folder(folder.path())).await;
    assert_outcome_unknown(&reply);
    assert!(reply["error"].as_str().is_some_and(|error| error.contains("the host ended while")), "{reply}");
    assert_eq!(started, 1);
}

/// The broker knows that the next host has another journal.
#[tokio::test]
async fn a_call_that_was_running_in_a_crash_is_not_run_again_without_a_state_folder() {
    let (reply, started) = interrupted(McpProxyHostOptions::default).await;
    assert_outcome_unknown(&reply);
    assert_eq!(started, 1);
}

/// The reply gets lost with the host that sent it.
#[tokio::test]
async fn an_answered_call_gets_its_stored_answer_after_a_crash() {
    let bus = Bus::start().await;
    let relay = Relay::to(bus.address()).await;
    let (gate, toolbox) = gated();
    let folder = tempfile::tempdir().expect("a folder");
    let first = CrashingHost::start(&relay.url(), &toolbox, in_folder(folder.path()));
    let worker = RawWorker::connect(&bus, AgentRef::new("w#mcp")).await;
    let arguments = json!({"padding": "x".repeat(100_000)}).to_string();
    let call = json!({"op": "call", "tool": "gate", "arguments": arguments});
    let calling = tokio::spawn(async move { worker.request(call).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    relay.discard();
    gate.add_permits(8);
    relay.discarded(arguments.len()).await;
    first.crash().await;
    let _second = CrashingHost::start(&bus.url(), &toolbox, in_folder(folder.path()));
    let reply = soon("a reply", calling).await.expect("no panic");
    assert_eq!(reply["result"]["result"], echo("gate", &arguments));
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn a_state_folder_that_is_in_use_is_an_error() {
    let bus = Bus::start().await;
    let (_, toolbox) = gated();
    let folder = tempfile::tempdir().expect("a folder");
    let _host = CrashingHost::start(&bus.url(), &toolbox, in_folder(folder.path()));
    let worker = RawWorker::connect(&bus, AgentRef::new("w#mcp")).await;
    soon("a manifest", worker.request(json!({"op": "manifest"}))).await;
    let second = McpProxyHost::new(&bus.url(), AgentRef::new("other"), TOKEN, toolbox, in_folder(folder.path()));
    let error = soon("the end", second.serve()).await.expect_err("the folder is locked");
    assert!(matches!(&error, McpProxyError::State { .. }), "{error}");
}
