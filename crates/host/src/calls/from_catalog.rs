//! Requests that need no process of a legacy server: handshakes, lists and the log level. The catalog answers them, so that a
//! session's process is started by the first request that needs it, and a client never waits for a server that is slow to
//! start. They wait for no other request of their session, and for no permit.

use super::answers::Given;
use super::authorise::bad_params;
use super::connect::bad_result;
use super::not_connected::NotConnected;
use super::own_lists::open_to_compare;
use super::slot::{NewCall, Slot};
use crate::catalog::page::Viewer;
use crate::host::Host;
use crate::server::{Server, in_version_of};
use crate::session::SessionId;
use crate::translate::legacy_on_modern::{self, ModernResult};
use crate::translate::log_level::LogLevel;
use crate::translate::{modern_on_legacy, server_has};
use std::sync::Arc;
use toolbus_mcp::{Era, ListKind, Members, Outcome, Raw, Rpc, RpcError, empty_object};
use toolbus_upstream::Eras;

impl NewCall {
    /// Whether the catalog answers the request. Decided on arrival, and again before a connection is opened, because the
    /// server may have been starting.
    pub fn is_for_catalog(&self) -> bool {
        let id = SessionId { mailbox: self.request.from.session_id.to_string(), key: self.parsed.rpc.session.clone() };
        is_for_catalog(&self.server, &self.parsed.rpc, &id)
    }
}

fn is_for_catalog(server: &Server, rpc: &Rpc, id: &SessionId) -> bool {
    let Some(eras) = server.known_eras().filter(|_| rpc.task.is_none()) else { return false };
    if server.era_for(rpc.client.era, &eras) != Era::Legacy {
        return false;
    }
    match rpc.method.as_str() {
        _ if server.is_shared() && rpc.method != "server/discover" => false,
        "initialize" => rpc.client.era == Era::Legacy,
        "server/discover" => rpc.client.era == Era::Modern && eras.legacy.is_some(),
        "logging/setLevel" => {
            let is_known = eras.legacy.is_some() || handshake_of(&eras).is_some_and(|info| server_has(info, "logging"));
            is_known && rpc.client.era == Era::Legacy && level_of(rpc).is_some() && !has_process(server, id, |_| true)
        }
        method if ListKind::of_method(method).is_some() => {
            let has_cursor = Members::of(rpc.params.as_ref()).is_ok_and(|params| params.contains("cursor"));
            !has_cursor && !has_process(server, id, |upstream| upstream.has_own_lists())
        }
        _ => false,
    }
}

/// Whether the session has such a connection. One that is being opened can't answer yet.
pub fn has_process(server: &Server, id: &SessionId, is_such: impl Fn(&crate::upstream::Upstream) -> bool) -> bool {
    let Some(session) = server.known_session(id) else { return false };
    let Ok(upstream) = session.upstream.try_lock() else { return false };
    upstream.as_ref().is_some_and(|upstream| upstream.is_open() && is_such(upstream))
}

/// The server's description of itself. One that was not tried in the legacy era is described in the modern era.
fn handshake_of(eras: &Eras) -> Option<&Raw> {
    eras.legacy.as_ref().or(eras.modern.as_ref())
}

fn level_of(rpc: &Rpc) -> Option<LogLevel> {
    LogLevel::parse(&Members::of(rpc.params.as_ref()).ok()?.text("level")?)
}

/// The answer of the catalog, if the request is one for it.
pub async fn answer(host: &Arc<Host>, slot: &Slot, eras: &Eras) -> Result<Option<Given>, NotConnected> {
    let rpc = &slot.parsed.rpc;
    if !slot.is_for_catalog && !is_for_catalog(&slot.server, rpc, &slot.session_id()) {
        return Ok(None);
    }
    let handshake = handshake_of(eras).cloned().unwrap_or_else(empty_object);
    let result = match (rpc.method.as_str(), ListKind::of_method(&rpc.method)) {
        ("initialize", _) => {
            // A client that initializes again begins a new session.
            slot.server.close_session(&slot.session_id()).await;
            greeting(slot, eras)?
        }
        ("server/discover", _) => modern_on_legacy::discover(&handshake).map_err(|error| bad_result(slot, &error))?,
        ("logging/setLevel", _) if server_has(&handshake, "logging") => {
            let session = slot.server.session(host, slot.session_id(), Era::Legacy, slot.role())?;
            level_of(rpc).into_iter().for_each(|level| session.set_level(level));
            empty_object()
        }
        (_, Some(kind)) if server_has(&handshake, kind.capability()) => {
            if kind == ListKind::Tools {
                open_to_compare(host, slot, eras);
            }
            list(host, slot, kind)?
        }
        (method, _) => return Err(RpcError::method_not_found(method).into()),
    };
    Ok(Some(Outcome::Result(result).into()))
}

/// The result of `initialize`, as the server gave it to the host.
fn greeting(slot: &Slot, eras: &Eras) -> Result<Raw, NotConnected> {
    let params = slot.parsed.rpc.params.clone().unwrap_or_else(empty_object);
    if let Some(initialize) = &eras.legacy {
        return Ok(in_version_of(&params, initialize.clone()));
    }
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    let result = legacy_on_modern::initialize_result(&discover, &params, slot.server.name());
    result.map_err(|error| bad_result(slot, &error).into())
}

/// The whole list, as far as the client may see it.
fn list(host: &Host, slot: &Slot, kind: ListKind) -> Result<Raw, NotConnected> {
    let owners = host.catalog.owners();
    let policy = host.options.policy.current();
    let viewer = host.viewer(slot.role(), &policy, &owners, &slot.server);
    let (items, rest, era) = host.catalog.list(slot.server.index, kind);
    let viewer = Viewer { era, ..viewer };
    let shown: Vec<_> = items.iter().filter_map(|item| viewer.shown(kind, item)).collect();
    let mut result = Members::of(rest.as_ref()).map_err(bad_params)?.clone();
    result.set(kind.items(), Raw::array(shown.iter().map(|item| &**item)));
    let result = result.into_raw();
    let rpc = &slot.parsed.rpc;
    let translated = match (rpc.client.era, era) {
        (Era::Legacy, Some(Era::Modern)) => legacy_on_modern::result(&result).map(|translated| match translated {
            ModernResult::Complete(result) => result,
            ModernResult::InputRequired { .. } => result,
        }),
        (Era::Modern, Some(Era::Legacy)) => modern_on_legacy::result(&rpc.method, &result),
        _ => Ok(result),
    };
    Ok(translated.map_err(|error| bad_result(slot, &error))?)
}
