//! A server in this process: it has no child process and no handshake, and its calls are tokio tasks. It speaks only the
//! modern era, in which all clients share one connection.

use crate::calls::Origin;
use crate::error::ServerError;
use crate::inbound::Inbound;
use async_trait::async_trait;
use bytestring::ByteString;
use futures_util::FutureExt;
use serde_json::json;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use toolbus_mcp::{MODERN_VERSIONS, Members, Outcome, Raw, Request, RpcError, codes, empty_object, raw};

/// How often the list of tools is compared with the last one that was read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// A server in this process, which offers tools.
#[async_trait]
pub trait InProcessServer: Send + Sync {
    /// The tools that can be called now, as in a result of `tools/list`. Called about once a second to notice changes.
    fn list_tools(&self) -> Vec<Raw>;

    /// Runs a tool. Dropping the future cancels the call; a panic is reported as an error.
    async fn call(&self, caller: Caller<'_>, tool: &str, arguments: &Raw) -> Outcome;
}

/// Two configurations are equal if they have the same server, not if the servers behave alike.
impl PartialEq for dyn InProcessServer {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

/// Who sends a request. Only servers in this process get to know it. Empty for requests of the host itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller<'a> {
    /// The caller's mailbox.
    pub mailbox: &'a str,
    /// The caller's role as stamped by the broker.
    pub role: Option<&'a str>,
    /// The id of the request on the bus, which stays the same when it is redelivered.
    pub request: &'a str,
}

pub(crate) struct InProcessLink {
    shared: Arc<Shared>,
    checks: AbortHandle,
}

struct Shared {
    server: Arc<dyn InProcessServer>,
    inbound: Arc<Inbound>,
    running: Mutex<HashMap<u64, AbortHandle>>,
    /// The last result of `tools/list`.
    listed: Mutex<Option<Raw>>,
}

impl InProcessLink {
    pub fn open(server: Arc<dyn InProcessServer>, inbound: Arc<Inbound>) -> Self {
        let shared = Shared { server, inbound, running: Mutex::default(), listed: Mutex::default() };
        let shared = Arc::new(shared);
        let checks = tokio::spawn(Arc::clone(&shared).report_changes()).abort_handle();
        Self { shared, checks }
    }

    pub fn start(&self, number: u64, request: Request, caller: Caller<'_>) {
        let shared = Arc::clone(&self.shared);
        let (mailbox, role, id) =
            (caller.mailbox.to_owned(), caller.role.map(str::to_owned), caller.request.to_owned());
        // Locked until the task is inserted, so that the task can't remove itself before.
        let mut running = lock(&self.shared.running);
        if self.shared.inbound.calls.closed().is_some() {
            // The call has ended with the connection, and `stop` would not find its task.
            return;
        }
        let task = tokio::spawn(async move {
            let caller = Caller { mailbox: &mailbox, role: role.as_deref(), request: &id };
            let answer = AssertUnwindSafe(shared.answer(&request, caller)).catch_unwind().await;
            lock(&shared.running).remove(&number);
            shared.inbound.finish(Some(number), Ok(answer.unwrap_or_else(|_| panicked(&request).into())));
        });
        running.insert(number, task.abort_handle());
    }

    pub fn cancel(&self, number: u64) {
        if let Some(task) = lock(&self.shared.running).remove(&number) {
            task.abort();
        }
        let server = self.shared.inbound.server.clone();
        self.shared.inbound.calls.finish(number, Err(ServerError::Cancelled { server }));
    }

    /// Aborts all calls.
    pub fn stop(&self) {
        self.checks.abort();
        let inbound = &self.shared.inbound;
        inbound.close(ServerError::Closed { server: inbound.server.clone() });
        lock(&self.shared.running).drain().for_each(|(_, task)| task.abort());
    }
}

impl Shared {
    async fn answer(&self, request: &Request, caller: Caller<'_>) -> Outcome {
        match request.method.as_str() {
            "server/discover" => Outcome::Result(raw(&json!({"supportedVersions": MODERN_VERSIONS,
                "capabilities": {"tools": {}}, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}))),
            "tools/list" => {
                let list = self.list();
                *lock(&self.listed) = Some(list.clone());
                Outcome::Result(list)
            }
            "tools/call" => {
                let params = Members::of(request.params.as_ref()).unwrap_or_default();
                let Some(tool) = params.text("name") else {
                    return RpcError::invalid_params("the name of the tool is missing").into();
                };
                let none = empty_object();
                self.server.call(caller, &tool, params.get("arguments").unwrap_or(&none)).await
            }
            method => RpcError::method_not_found(method).into(),
        }
    }

    fn list(&self) -> Raw {
        let tools = self.server.list_tools();
        raw(&json!({"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}))
    }

    async fn report_changes(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let listed = lock(&self.listed).as_ref().map(|list| list.get().to_owned());
            if listed.is_some_and(|listed| listed != self.list().get()) {
                let changed = self.inbound.receive(ByteString::from_static(LIST_CHANGED));
                self.inbound.deliver(changed, Origin::Outside).await;
            }
        }
    }
}

fn panicked(request: &Request) -> RpcError {
    let tool = Members::of(request.params.as_ref()).ok().and_then(|params| params.text("name"));
    RpcError::new(codes::INTERNAL_ERROR, format!("tool '{}' panicked", tool.as_deref().unwrap_or(&request.method)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
