//! A request as it is made when its client is not waiting: in a session of its own, and by somebody who can't be asked.

use crate::failure;
use crate::session::SessionId;
use serde_json::value::RawValue;
use toolbus_mcp::{ClientHello, Era, Members, MembersError, Raw, Rpc, RpcError, meta};
use toolbus_protocol::{ErrorCode, MsgId};

/// What a client says it can be asked, and that it would be given a task of the server's own.
const PROMISES: [&str; 4] = ["elicitation", "sampling", "roots", "tasks"];

const KEY: &str = "toolbus task ";

impl SessionId {
    /// The key of a task's own session. Its caller's mailbox makes it unique.
    pub fn of_task(task: &MsgId) -> String {
        format!("{KEY}{task}")
    }

    pub fn is_key_of_task(key: &str) -> bool {
        key.starts_with(KEY)
    }

    /// Whether nobody listens there.
    pub fn is_of_task(&self) -> bool {
        Self::is_key_of_task(&self.key)
    }
}

pub fn without_client(rpc: Rpc, session: &str) -> Result<Rpc, RpcError> {
    let unreadable = |error: MembersError| RpcError::invalid_params(format!("Invalid params: {error}"));
    let (client, params) = match rpc.client.era {
        Era::Legacy => (silent_hello(rpc.client).map_err(unreadable)?, rpc.params),
        Era::Modern => {
            let params = rpc.params.as_deref().map(silent_params).transpose().map_err(unreadable)?;
            (rpc.client, params)
        }
    };
    Ok(Rpc { session: session.to_owned(), client, params, ..rpc })
}

/// Why a task can't go on.
pub fn nobody_to_ask(what: &str) -> RpcError {
    let message = format!("{what}, and a task has nobody to ask; call the tool without a task");
    failure::bus(ErrorCode::NobodyToAsk, message)
}

fn silent_hello(client: ClientHello) -> Result<ClientHello, MembersError> {
    let Some(initialize) = &client.initialize else { return Ok(client) };
    let mut members = Members::of(Some(initialize))?;
    let capabilities = silent(members.get("capabilities"))?;
    members.set("capabilities", capabilities);
    Ok(ClientHello { initialize: Some(members.to_raw()), ..client })
}

fn silent_params(params: &RawValue) -> Result<Raw, MembersError> {
    let Some(capabilities) = meta::get(Some(params), meta::CLIENT_CAPABILITIES) else { return Ok(params.to_owned()) };
    meta::set(Some(params), meta::CLIENT_CAPABILITIES, silent(Some(&capabilities))?)
}

fn silent(capabilities: Option<&RawValue>) -> Result<Raw, MembersError> {
    let mut members = Members::of(capabilities)?;
    for name in PROMISES {
        members.remove(name);
    }
    if let Some(extensions) = members.get("extensions") {
        let mut own = Members::of(Some(extensions))?;
        own.remove(meta::TASKS_EXTENSION);
        let own = own.to_raw();
        members.set("extensions", own);
    }
    Ok(members.to_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolbus_mcp::raw;

    fn rpc(client: ClientHello, params: Value) -> Rpc {
        let (server, method) = ("one".to_owned(), "tools/call".to_owned());
        Rpc { server, session: "s".to_owned(), client, method, params: Some(raw(&params)), task: None }
    }

    #[test]
    fn a_server_is_told_that_nobody_can_be_asked_and_all_else_as_it_was() {
        let can = json!({"elicitation": {}, "sampling": {}, "roots": {}, "x": 1.5, "extensions": {meta::TASKS_EXTENSION: {}, "a/b": {}}});
        let left = json!({"x": 1.5, "extensions": {"a/b": {}}});
        let hello = ClientHello::legacy(raw(&json!({"capabilities": can, "clientInfo": {"name": "n"}})));
        let alone = without_client(rpc(hello, json!({"name": "t"})), "task").expect("readable");
        let initialize: Value = serde_json::from_str(alone.client.initialize.expect("there").get()).expect("JSON");
        assert_eq!(initialize, json!({"capabilities": left, "clientInfo": {"name": "n"}}));
        let params = json!({"name": "t", "_meta": {meta::CLIENT_CAPABILITIES: can, "progressToken": 7}});
        let alone = without_client(rpc(ClientHello::modern(), params), "task").expect("readable");
        let params: Value = serde_json::from_str(alone.params.expect("there").get()).expect("JSON");
        assert_eq!(params, json!({"name": "t", "_meta": {meta::CLIENT_CAPABILITIES: left, "progressToken": 7}}));
        assert_eq!(alone.session, "task");
    }
}
