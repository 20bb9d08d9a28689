//! Session slots for calls. A call that needs a process of its own waits for a slot for a while, instead of being refused
//! when all are taken: many clients begin at the same time, and most of them are soon idle.

use super::from_catalog::has_process;
use super::slot::{NewCall, Slot};
use crate::host::Host;
use crate::session::{Session, SessionId};
use crate::tasks;
use crate::translate::modern_on_legacy::Repetition;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use toolbus_mcp::{Era, is_plain_request};

/// What a call or task holds until it ends: the permits of a task's share, and a slot until its session uses it.
#[derive(Default)]
pub struct Reservation {
    _permits: Vec<OwnedSemaphorePermit>,
    session: Option<Arc<Session>>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // The call ended before its session opened a connection.
        drop(self.session.take().and_then(|session| session.take_reserved()));
    }
}

impl NewCall {
    /// Whether the call will open a connection of its session, as far as that is known on its arrival.
    pub fn may_need_slot(&self) -> bool {
        let (server, rpc) = (&self.server, &self.parsed.rpc);
        if server.is_shared() || rpc.task.is_some() || is_plain_request(&rpc.method) {
            return false;
        }
        let is_legacy = server.known_eras().is_none_or(|eras| server.era_for(rpc.client.era, &eras) == Era::Legacy);
        let id = || SessionId { mailbox: self.request.from.session_id.to_string(), key: rpc.session.clone() };
        is_legacy && !has_process(server, &id(), |_| true)
    }
}

/// Waits for the slot of a task without a limit, and for that of a call up to `slot_patience`. Without a slot, the call is
/// refused when it is about to open its connection.
pub async fn reserve(host: &Arc<Host>, slot: &Slot) -> Reservation {
    if slot.is_task() {
        return Reservation { _permits: tasks::reserve_session(host, slot).await, session: None };
    }
    tokio::time::timeout(host.options.limits.slot_patience, reserve_for_call(host, slot))
        .await
        .ok()
        .flatten()
        .unwrap_or_default()
}

async fn reserve_for_call(host: &Arc<Host>, slot: &Slot) -> Option<Reservation> {
    let (server, client) = (&slot.server, slot.parsed.rpc.client.era);
    let eras = server.eras(host).await.ok()?;
    let continues = client == Era::Modern && Repetition::of(slot.parsed.rpc.params.as_ref()).ok().flatten().is_some();
    if continues || server.era_for(client, &eras) != Era::Legacy {
        return None;
    }
    let session = server.session(host, slot.session_id(), client, slot.role()).ok()?;
    // One call of the session waits; the others then find its slot.
    let _waits = session.reserving.lock().await;
    if session.has_slot() {
        return None;
    }
    let _in_use = session.begin_use();
    session.reserve(server.wait_for_call_slot(host, &session).await);
    Some(Reservation { _permits: Vec::new(), session: Some(Arc::clone(&session)) })
}
