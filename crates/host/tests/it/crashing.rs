//! A host that can be ended in the middle of everything, and what its tools leave behind.

use crate::support::{PATIENCE, Rig, Worker, connect, fake, open_host, within};
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

/// Runs on threads of its own, so that everything of it can be stopped at once.
pub struct CrashingHost {
    runtime: Option<Runtime>,
    journal: Weak<Journal>,
}

impl CrashingHost {
    pub async fn start(rig: &Rig, place: &Place, servers: Vec<ServerConfig>) -> Self {
        let mut options = open_host(HostConfig { servers });
        options.journal = Some(Arc::new(place.journal()));
        Self::with(rig, options).await
    }

    pub async fn with(rig: &Rig, options: HostOptions) -> Self {
        let journal = options.journal.as_ref().map(Arc::downgrade).unwrap_or_default();
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
        self.journal.upgrade().expect("it runs")
    }

    /// Nothing of the host runs any more when this returns, and nothing was ended in order.
    pub async fn crash(mut self) {
        self.runtime.take().expect("it runs").shutdown_background();
        within("the host to be gone", async {
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

/// Where a host keeps its journal, and tools their effects.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    /// Waits until whoever had it is gone.
    pub fn journal(&self) -> Journal {
        let end = std::time::Instant::now() + PATIENCE;
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

    /// The lines that tools have written.
    pub fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("effects")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    pub async fn effects_are(&self, count: usize) {
        within("the effects", async {
            while self.effects().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(self.effects().len(), count, "{:?}", self.effects());
    }

    /// Lets the calls go on that wait.
    pub fn release(&self) {
        std::fs::write(self.path("go"), "").expect("a file");
    }

    /// Arguments of a call that ends at once.
    pub fn quick(&self) -> Value {
        json!({"file": self.path("effects")})
    }

    /// Arguments of a call that waits after its effect.
    pub fn waiting(&self) -> Value {
        json!({"file": self.path("effects"), "until": self.path("go")})
    }

    pub fn deadly(&self) -> Value {
        json!({"file": self.path("effects"), "die": true})
    }
}

/// With calls that may run twice.
pub fn safe(mut server: ServerConfig) -> ServerConfig {
    server.calls.replay = toolbus_upstream::Replay::Safe;
    server
}

pub fn server() -> ServerConfig {
    fake("one", "legacy")
}

pub async fn begin(worker: &Worker, tool: &str, arguments: &Value) -> Call {
    worker.start("one", "tools/call", json!({"name": tool, "arguments": arguments})).await
}
