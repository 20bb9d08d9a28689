//! A host that can be crashed at any time, and the folder that holds its journal and the effects of its tools.

use crate::support::{Rig, TIMEOUT, Worker, connect, fake, open_host, within};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use toolbus_client::{AgentRef, Call};
use toolbus_host::{HostOptions, run_host};
use toolbus_journal::{Journal, JournalOptions};
use toolbus_upstream::{HostConfig, ServerConfig};

/// A host on a runtime of its own, so that all its tasks can be aborted together.
pub struct CrashingHost {
    runtime: Option<Runtime>,
    journal: Weak<Journal>,
}

impl CrashingHost {
    pub async fn start(rig: &Rig, folder: &TestFolder, servers: Vec<ServerConfig>) -> Self {
        let mut options = open_host(HostConfig { servers });
        options.journal = Arc::new(folder.journal());
        Self::with(rig, options).await
    }

    pub async fn with(rig: &Rig, options: HostOptions) -> Self {
        let journal = Arc::downgrade(&options.journal);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let address = rig.address();
        runtime.spawn(async move {
            let client = connect(address, AgentRef::new("host")).await;
            run_host(client, options, CancellationToken::new()).await
        });
        Self { runtime: Some(runtime), journal }
    }

    pub fn journal(&self) -> Arc<Journal> {
        self.journal.upgrade().expect("a running host")
    }

    /// Aborts the host without a clean shutdown; returns when it has released its journal.
    pub async fn crash(mut self) {
        self.runtime.take().expect("a running host").shutdown_background();
        within("the host to release its journal", async {
            while self.journal.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Drop for CrashingHost {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The folder of a host's journal and of its tools' effects.
pub struct TestFolder(TempDir);

impl TestFolder {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    /// Opens the journal; waits until the previous host has released its lock.
    pub fn journal(&self) -> Journal {
        let end = std::time::Instant::now() + TIMEOUT;
        loop {
            match Journal::open(&self.path("journal"), JournalOptions::default()) {
                Ok(journal) => return journal,
                Err(error) if std::time::Instant::now() > end => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The lines that tools have written, one for each effect.
    pub fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("effects")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Waits for `count` effects, and fails if there are more.
    pub async fn expect_effects(&self, count: usize) {
        within("the effects", async {
            while self.effects().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(self.effects().len(), count, "{:?}", self.effects());
    }

    /// Lets the calls with [`waiting`](Self::waiting) arguments return.
    pub fn release(&self) {
        std::fs::write(self.path("go"), "").expect("a file");
    }

    /// Arguments of a call that returns right after its effect.
    pub fn quick(&self) -> Value {
        json!({"file": self.path("effects")})
    }

    /// Arguments of a call that blocks after its effect until [`release`](Self::release).
    pub fn waiting(&self) -> Value {
        json!({"file": self.path("effects"), "until": self.path("go")})
    }

    /// Arguments of a call that crashes its server after its effect.
    pub fn crashing_server(&self) -> Value {
        json!({"file": self.path("effects"), "die": true})
    }
}

/// Marks the calls of a server as replay-safe.
pub fn replay_safe(mut server: ServerConfig) -> ServerConfig {
    server.calls.replay = toolbus_upstream::Replay::Safe;
    server
}

pub fn server() -> ServerConfig {
    fake("one", "legacy")
}

pub async fn start_call(worker: &Worker, tool: &str, arguments: &Value) -> Call {
    worker.start("one", "tools/call", json!({"name": tool, "arguments": arguments})).await
}
