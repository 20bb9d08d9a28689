//! A tool of a chosen host that workers don't see because another host owns its name. The broker left it out of the host's
//! manifest, so the host's servers are asked for it.

use crate::catalog::Catalog;
use crate::failure::Failure;
use crate::hosts_admin::ask_raw;
use std::time::Duration;
use toolbus_client::{MultiplexedClient, SendOptions};
use toolbus_mcp::{
    ClientHello, HostManifest, HostRequest, MODERN_VERSION, Members, Raw, Rpc, ServerState, empty_object, meta, raw,
};
use toolbus_protocol::{Body, InboxKind, InboxMessage};

/// Maximum of pages of one server's list.
const MAX_PAGES: usize = 100;
const CLOSE_DEADLINE: Duration = Duration::from_secs(60);

/// Adds the tool to the catalog, which is that of one host, if its name is held back. Rules of the operator for the host
/// stay in force.
pub async fn add(catalog: &mut Catalog, client: &MultiplexedClient, tool: &str) -> Result<(), Failure> {
    for host in catalog.hosts.iter_mut().filter(|host| host.online) {
        let HostManifest { held_back, listed_only, servers, .. } = &mut host.manifest;
        if *listed_only || !held_back.iter().any(|held| held == tool) {
            continue;
        }
        let session = uuid::Uuid::new_v4().to_string();
        for server in servers.iter_mut().filter(|server| server.state == ServerState::Up) {
            server.tools.extend(find(client, &host.name, &server.name, &session, tool).await?);
        }
        let close = Body::parse(HostRequest::Close { session }.to_json().into_bytes())?;
        let message = InboxMessage::new(client.client().me(), InboxKind::McpRequest, close);
        client.client().deliver_with(&host.name, message, SendOptions { deadline: Some(CLOSE_DEADLINE) }).await?;
    }
    Ok(())
}

/// The tool's definition in the list of one server.
async fn find(
    client: &MultiplexedClient,
    host: &str,
    server: &str,
    session: &str,
    tool: &str,
) -> Result<Option<Raw>, Failure> {
    let mut cursor: Option<Raw> = None;
    for _ in 0..MAX_PAGES {
        let request = HostRequest::Rpc(Rpc {
            server: server.to_owned(),
            session: session.to_owned(),
            client: ClientHello::modern(),
            method: "tools/list".into(),
            params: Some(params(cursor.take())),
            task: None,
            hand_back: false,
        });
        let result = ask_raw(client, host, request).await?;
        let unreadable = |error: serde_json::Error| Failure::BadReply(error.to_string());
        let members = result.members().map_err(|error| Failure::BadReply(error.to_string()))?;
        let tools: Vec<Raw> = members
            .get("tools")
            .map_or(Ok(Vec::new()), |tools| serde_json::from_str(tools.get()))
            .map_err(unreadable)?;
        let named =
            |definition: &Raw| Members::of(Some(definition)).is_ok_and(|of| of.text("name").as_deref() == Some(tool));
        if let Some(found) = tools.into_iter().find(named) {
            return Ok(Some(found));
        }
        cursor = members.get("nextCursor").filter(|next| next.get() != "null").map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(None)
}

fn params(cursor: Option<Raw>) -> Raw {
    let me = raw(&serde_json::json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")}));
    let mut meta_members = Members::default();
    for (name, value) in meta::modern(MODERN_VERSION, empty_object(), Some(me)) {
        meta_members.set(name, value);
    }
    let mut params = Members::default();
    if let Some(cursor) = cursor {
        params.set("cursor", cursor);
    }
    params.set(meta::META, meta_members.into_raw());
    params.into_raw()
}
