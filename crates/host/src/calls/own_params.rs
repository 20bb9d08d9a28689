//! The names in a request as its server knows them.

use super::authorise::bad_params;
use crate::catalog::names::{is_prefixed, own_name};
use crate::failure;
use crate::server::Server;
use toolbus_mcp::{ListKind, Members, MembersError, NameKey, Raw, Rpc, RpcError, raw};
use toolbus_protocol::ErrorCode;

/// The params with the server's own name of the item, without its prefix.
pub fn own_params(server: &Server, rpc: &Rpc, key: Option<&NameKey>) -> Result<Option<Raw>, RpcError> {
    let (kind, visible) = match key {
        Some(NameKey::Tool(name)) => (ListKind::Tools, name),
        Some(NameKey::Prompt(name)) => (ListKind::Prompts, name),
        _ => return Ok(rpc.params.clone()),
    };
    let prefix = server.config.prefix.as_deref().filter(|_| is_prefixed(kind));
    let Some(own) = own_name(prefix, visible) else {
        let message = format!("server {:?} has no {visible:?}: its names start with {prefix:?}", server.name());
        return Err(failure::bus(ErrorCode::UnknownName, message));
    };
    if prefix.is_none() {
        return Ok(rpc.params.clone());
    }
    let renamed = || -> Result<Raw, MembersError> {
        let mut params = Members::of(rpc.params.as_ref())?.clone();
        if rpc.method == "completion/complete" {
            params.edit("ref", |reference| reference.set("name", raw(own)))?;
        } else {
            params.set("name", raw(own));
        }
        Ok(params.into_raw())
    };
    renamed().map(Some).map_err(bad_params)
}
