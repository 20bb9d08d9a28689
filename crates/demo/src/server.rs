//! Answers the messages of the client. Tool calls run as tasks, so that they can be cancelled.

use crate::{texts, tools};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;
use toolbus_mcp::{
    Era, Id, LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSIONS, Members, Message, Notification, Outcome, Raw, Request,
    Response, RpcError, codes, meta, raw,
};

/// Maximum number of running calls.
const MAX_CALLS: usize = 256;
const ABOUT_URI: &str = "demo://about";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

type Running = Arc<Mutex<HashMap<Id, AbortHandle>>>;

/// The server of one client.
#[derive(Default)]
pub struct Server {
    running: Running,
}

impl Server {
    /// Handles one line of the client.
    pub fn receive(&self, line: String) -> std::io::Result<()> {
        match Message::parse(line) {
            Ok(Message::Request(request)) if request.method == "tools/call" => self.call(request),
            Ok(Message::Request(Request { id, method, params })) => {
                let era = Era::of_params(params.as_ref());
                respond(id, answer(era, &method, params.as_ref()))
            }
            Ok(Message::Notification(notification)) => {
                self.notified(&notification);
                Ok(())
            }
            Ok(Message::Response(_)) => Ok(()),
            Err(error) => send(Response { id: error.id().cloned(), outcome: error.to_rpc_error().into() }),
        }
    }

    fn call(&self, Request { id, params, .. }: Request) -> std::io::Result<()> {
        let mut calls = lock(&self.running);
        if calls.len() >= MAX_CALLS || calls.contains_key(&id) {
            let problem = "too many calls, or the id of a running one";
            return respond(id, Err(RpcError::new(codes::INVALID_REQUEST, problem)));
        }
        let (running, call) = (Arc::clone(&self.running), id.clone());
        let task = tokio::spawn(async move {
            let era = Era::of_params(params.as_ref());
            let outcome = tools::call(params.as_ref()).await.map(|result| complete(era, result));
            // Under the lock: a call that was cancelled gets no response.
            let mut calls = lock(&running);
            if calls.remove(&call).is_some() {
                // If the client is gone, stdin is closed as well, which ends the server.
                respond(call, outcome).ok();
            }
        });
        calls.insert(id, task.abort_handle());
        Ok(())
    }

    fn notified(&self, notification: &Notification) {
        let params = Members::of(notification.params.as_ref()).unwrap_or_default();
        let id = params.get("requestId").and_then(Id::from_raw);
        let id = id.filter(|_| notification.method == "notifications/cancelled");
        if let Some(call) = id.and_then(|id| lock(&self.running).remove(&id)) {
            call.abort();
        }
    }
}

fn lock(running: &Running) -> MutexGuard<'_, HashMap<Id, AbortHandle>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a request that is answered at once.
fn answer(era: Era, method: &str, params: Option<&Raw>) -> Result<Value, RpcError> {
    let list = |scope: &str, name: &str, items: Value| {
        let result = json!({name: items});
        if era == Era::Modern { cached(scope, result) } else { result }
    };
    let result = match (method, era) {
        ("initialize", Era::Legacy) => initialize(params),
        ("ping", Era::Legacy) => json!({}),
        ("server/discover", Era::Modern) => discover(),
        ("tools/list", _) => list("public", "tools", tools::definitions()),
        ("prompts/list", _) => list("public", "prompts", json!([texts::prompt()])),
        ("prompts/get", _) => prompt(params)?,
        ("resources/list", _) => list("private", "resources", json!([texts::about(ABOUT_URI)])),
        ("resources/templates/list", _) => list("private", "resourceTemplates", json!([])),
        ("resources/read", _) => {
            let contents = resource(era, params)?;
            if era == Era::Modern { cached("private", contents) } else { contents }
        }
        _ => return Err(RpcError::method_not_found(method)),
    };
    Ok(complete(era, result))
}

fn initialize(params: Option<&Raw>) -> Value {
    let wanted = Members::of(params).ok().and_then(|params| params.text("protocolVersion"));
    let version = wanted.filter(|wanted| LEGACY_VERSIONS.contains(&wanted.as_str()));
    json!({
        "protocolVersion": version.as_deref().unwrap_or(LATEST_LEGACY),
        "capabilities": capabilities(),
        "serverInfo": server_info(),
        "instructions": texts::INSTRUCTIONS,
    })
}

fn discover() -> Value {
    let versions: Vec<&str> = LEGACY_VERSIONS.iter().chain(MODERN_VERSIONS).copied().collect();
    let result = json!({
        "supportedVersions": versions,
        "capabilities": capabilities(),
        "instructions": texts::INSTRUCTIONS,
        meta::META: {SERVER_INFO: server_info()},
    });
    cached("private", result)
}

fn capabilities() -> Value {
    json!({"prompts": {}, "resources": {}, "tools": {}})
}

fn server_info() -> Value {
    json!({"name": "toolbus-demo", "version": env!("CARGO_PKG_VERSION")})
}

fn prompt(params: Option<&Raw>) -> Result<Value, RpcError> {
    let params = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
    match params.text("name").as_deref() {
        Some("tour") => {}
        name => return Err(RpcError::invalid_params(format!("there is no prompt {:?}", name.unwrap_or_default()))),
    }
    let arguments = Members::of(params.get("arguments")).unwrap_or_default();
    let text = texts::tour(arguments.text("topic").as_deref());
    Ok(json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}))
}

fn resource(era: Era, params: Option<&Raw>) -> Result<Value, RpcError> {
    let uri = Members::of(params).ok().and_then(|params| params.text("uri")).unwrap_or_default();
    if uri != ABOUT_URI {
        let code = if era == Era::Modern { codes::INVALID_PARAMS } else { codes::RESOURCE_NOT_FOUND };
        return Err(RpcError::new(code, format!("there is no resource {uri}")));
    }
    Ok(json!({"contents": [{"uri": ABOUT_URI, "mimeType": "text/markdown", "text": texts::ABOUT}]}))
}

/// The result with how long and by whom it may be cached.
fn cached(scope: &str, mut result: Value) -> Value {
    (result["ttlMs"], result["cacheScope"]) = (json!(0), json!(scope));
    result
}

/// The result as its era has it.
fn complete(era: Era, mut result: Value) -> Value {
    if era == Era::Modern {
        result["resultType"] = json!("complete");
    }
    result
}

fn respond(id: Id, outcome: Result<Value, RpcError>) -> std::io::Result<()> {
    let outcome = outcome.map_or_else(Outcome::from, |result| Outcome::Result(raw(&result)));
    send(Response { id: Some(id), outcome })
}

/// Writes one line.
pub fn send(message: impl Into<Message>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(message.into().to_json().as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}
