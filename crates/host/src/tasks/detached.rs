//! Requests of tasks, whose client doesn't wait: they have a session of their own and announce no client that a server
//! could send requests to.

use crate::failure;
use crate::session::SessionId;
use toolbus_mcp::{ClientHello, Era, Members, MembersError, Raw, Rpc, RpcError, meta};
use toolbus_protocol::{ErrorCode, MsgId};

/// Client capabilities for requests of the server, and for tasks of the server's own.
const REQUEST_CAPABILITIES: [&str; 4] = ["elicitation", "sampling", "roots", "tasks"];

const TASK_KEY_PREFIX: &str = "toolbus task ";

impl SessionId {
    /// The key of a task's own session; unique together with its caller's mailbox.
    pub fn of_task(task: &MsgId) -> String {
        format!("{TASK_KEY_PREFIX}{task}")
    }

    pub fn is_key_of_task(key: &str) -> bool {
        key.starts_with(TASK_KEY_PREFIX)
    }

    /// Whether the session belongs to a task, and so has no client.
    pub fn is_of_task(&self) -> bool {
        Self::is_key_of_task(&self.key)
    }
}

/// The request in the task's own session, without capabilities for requests of the server.
pub fn without_client(rpc: Rpc, session: &str) -> Result<Rpc, RpcError> {
    let unreadable = |error: MembersError| RpcError::invalid_params(format!("Invalid params: {error}"));
    let (client, params) = match rpc.client.era {
        Era::Legacy => (hello_without_requests(rpc.client).map_err(unreadable)?, rpc.params),
        Era::Modern => {
            let params = rpc.params.as_ref().map(params_without_requests).transpose().map_err(unreadable)?;
            (rpc.client, params)
        }
    };
    Ok(Rpc { session: session.to_owned(), client, params, ..rpc })
}

/// The error of a task whose server sends a request to the client.
pub fn no_client_to_ask(what: &str) -> RpcError {
    let message = format!("{what}, but a task has no client to ask; call the tool without a task");
    failure::bus(ErrorCode::NobodyToAsk, message)
}

fn hello_without_requests(client: ClientHello) -> Result<ClientHello, MembersError> {
    let Some(initialize) = &client.initialize else { return Ok(client) };
    let mut members = Members::of(Some(initialize))?.clone();
    let capabilities = without_requests(members.get("capabilities"))?;
    members.set("capabilities", capabilities);
    Ok(ClientHello { initialize: Some(members.into_raw()), ..client })
}

fn params_without_requests(params: &Raw) -> Result<Raw, MembersError> {
    let Some(capabilities) = meta::get(Some(params), meta::CLIENT_CAPABILITIES) else { return Ok(params.to_owned()) };
    meta::set(Some(params), meta::CLIENT_CAPABILITIES, without_requests(Some(&capabilities))?)
}

fn without_requests(capabilities: Option<&Raw>) -> Result<Raw, MembersError> {
    let mut members = Members::of(capabilities)?.clone();
    for name in REQUEST_CAPABILITIES {
        members.remove(name);
    }
    if let Some(extensions) = members.get("extensions") {
        let mut own = Members::of(Some(extensions))?.clone();
        own.remove(meta::TASKS_EXTENSION);
        let own = own.into_raw();
        members.set("extensions", own);
    }
    Ok(members.into_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolbus_mcp::raw;

    fn rpc(client: ClientHello, params: Value) -> Rpc {
        let (server, method) = ("one".to_owned(), "tools/call".to_owned());
        Rpc {
            server,
            session: "s".to_owned(),
            client,
            method,
            params: Some(raw(&params)),
            task: None,
            hand_back: false,
        }
    }

    #[test]
    fn request_capabilities_are_removed_and_the_rest_is_unchanged() {
        let can = json!({"elicitation": {}, "sampling": {}, "roots": {}, "x": 1.5, "extensions": {meta::TASKS_EXTENSION: {}, "a/b": {}}});
        let left = json!({"x": 1.5, "extensions": {"a/b": {}}});
        let hello = ClientHello::legacy(raw(&json!({"capabilities": can, "clientInfo": {"name": "n"}})));
        let detached = without_client(rpc(hello, json!({"name": "t"})), "task").expect("readable");
        let initialize: Value = serde_json::from_str(detached.client.initialize.expect("there").get()).expect("JSON");
        assert_eq!(initialize, json!({"capabilities": left, "clientInfo": {"name": "n"}}));
        let params = json!({"name": "t", "_meta": {meta::CLIENT_CAPABILITIES: can, "progressToken": 7}});
        let detached = without_client(rpc(ClientHello::modern(), params), "task").expect("readable");
        let params: Value = serde_json::from_str(detached.params.expect("there").get()).expect("JSON");
        assert_eq!(params, json!({"name": "t", "_meta": {meta::CLIENT_CAPABILITIES: left, "progressToken": 7}}));
        assert_eq!(detached.session, "task");
    }
}
