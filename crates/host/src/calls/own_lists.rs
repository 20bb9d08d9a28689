//! Lists that depend on the client. The catalog's own connection has no capabilities, so a server may list other tools for a
//! client that has some. Its process shows them; the client is notified, and its process answers its lists from then on.

use super::slot::Slot;
use crate::catalog::Reader;
use crate::host::Host;
use crate::pins::ListedTools;
use crate::server::Server;
use crate::session::Session;
use crate::spare::is_like_host;
use crate::translate::modern_on_legacy::Envelope;
use crate::upstream::Upstream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use toolbus_mcp::{Era, ListKind, Raw};
use toolbus_upstream::Eras;

/// Notifies the client if its process lists other tools than the catalog.
pub async fn notify_of_other_tools(
    host: &Host,
    server: &Server,
    session: &Session,
    upstream: &Upstream,
    listed: &ListedTools,
) {
    if !host.catalog.lists_same(server.index, listed) && upstream.set_other_tools() {
        server.lists_vary.store(true, Ordering::Relaxed);
        let changed = ListKind::Tools.list_changed();
        session.deliver_notification(host, server.name(), upstream.usage, changed, None).await;
    }
}

/// Starts the process of a client with capabilities that lists the tools of a server whose lists vary, without waiting for
/// it. Other servers get their first process by a call.
pub fn open_to_compare(host: &Arc<Host>, slot: &Slot, eras: &Eras) {
    let server = Arc::clone(&slot.server);
    let Some(initialize) = initialize_of(slot).filter(|_| server.lists_vary.load(Ordering::Relaxed)) else { return };
    if eras.legacy.as_ref().is_none_or(|handshake| is_like_host(&initialize, handshake)) {
        return;
    }
    let Ok(session) = server.session(host, slot.session_id(), slot.parsed.rpc.client.era, slot.role()) else { return };
    // Being opened, or open: then it was compared.
    let is_needed = session.upstream.try_lock().is_ok_and(|current| current.as_ref().is_none_or(|it| !it.is_open()));
    if !is_needed {
        return;
    }
    let task_host = Arc::clone(host);
    host.tracker.spawn(async move {
        let host = task_host;
        let compare = async {
            let _in_use = session.begin_use();
            let Ok(upstream) = server.session_upstream(&host, &session, || initialize).await else { return };
            let reader = Reader { host: &host, server: &server, upstream: &upstream, era: Era::Legacy };
            if let Ok(listed) = reader.listed_tools("").await {
                notify_of_other_tools(&host, &server, &session, &upstream, &listed).await;
            }
        };
        tokio::select! {
            () = compare => {}
            () = host.shutdown.cancelled() => {}
        }
    });
}

/// The params of `initialize` with which the client's process is opened.
fn initialize_of(slot: &Slot) -> Option<Raw> {
    let rpc = &slot.parsed.rpc;
    match rpc.client.era {
        Era::Legacy => rpc.client.initialize.clone(),
        Era::Modern => Envelope::of(rpc.params.as_ref()).ok().map(|envelope| envelope.initialize()),
    }
}
