//! `subscriptions/listen` of a modern client at a legacy server: emulated by subscriptions.
//!
//! Between host and worker, the `subscriptionId` is the bus id of the call; the worker replaces it by the client's own
//! id.

use super::authorise::bad_params;
use super::flow::{Flow, FlowEnd};
use super::slot::Slot;
use crate::host::Host;
use crate::session::{Listener, Session};
use crate::session_setup::send_setup_request;
use crate::translate::listen::{self, Filter};
use serde_json::json;
use std::sync::Arc;
use toolbus_mcp::{Era, Outcome, Raw, RpcError, meta};
use toolbus_protocol::MsgId;

impl Flow {
    /// Subscribes, and acknowledges the listen: the acknowledgement must be the first message on the stream.
    pub(super) async fn begin_listen_on_legacy(&mut self) -> Option<FlowEnd> {
        let (slot, upstream) = (Arc::clone(&self.slot), Arc::clone(&self.upstream));
        let wanted = match Filter::of_listen(slot.parsed.rpc.params.as_ref()) {
            Ok(wanted) => wanted,
            Err(error) => return Some(FlowEnd::Failed(bad_params(error).into())),
        };
        let filter = wanted.honoured_by(&upstream.handshake());
        for uri in &filter.uris {
            if upstream.add_subscription(uri) {
                send_setup_request(&upstream, "resources/subscribe", json!({"uri": uri})).await;
            }
        }
        let acknowledgement: Raw = filter.acknowledgement(slot.id().as_str());
        self.host.notify_caller(&slot, listen::ACKNOWLEDGED.to_owned(), Some(acknowledgement)).await;
        if let Some(session) = &self.session {
            session.add_listener(Listener { call: slot.id().clone(), filter });
        }
        None
    }

    /// The end is reported, so that the client listens again.
    pub(super) fn end_listen_on_legacy(&self) -> FlowEnd {
        FlowEnd::Answered(Outcome::Result(listen::end(self.slot.id().as_str())).into())
    }

    fn stop_listening(&self) {
        let Some(session) = &self.session else { return };
        let Some(filter) = session.remove_listener(self.slot.id()) else { return };
        let upstream = Arc::clone(&self.upstream);
        let uris: Vec<String> = filter.uris.into_iter().filter(|uri| upstream.remove_subscription(uri)).collect();
        if uris.is_empty() || !upstream.is_open() {
            return;
        }
        self.host.tracker.spawn(async move {
            for uri in uris {
                send_setup_request(&upstream, "resources/unsubscribe", json!({"uri": uri})).await;
            }
        });
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop_listening();
        self.give_back_strays();
    }
}

/// Listens to changes of lists only, which needs no process: as soon as the session has one, its changes are delivered here,
/// and those of the catalog reach the worker by the manifest. Lasts until the call ends.
pub async fn listen_to_lists(host: &Host, slot: &Slot, filter: Filter) -> Result<std::convert::Infallible, RpcError> {
    let session = slot.server.session(host, slot.session_id(), Era::Modern, slot.role())?;
    let _in_use = session.begin_use();
    let acknowledgement: Raw = filter.acknowledgement(slot.id().as_str());
    host.notify_caller(slot, listen::ACKNOWLEDGED.to_owned(), Some(acknowledgement)).await;
    session.add_listener(Listener { call: slot.id().clone(), filter });
    let _listening = Listening { session: &session, call: slot.id() };
    std::future::pending().await
}

/// A listener of a session; removed on drop.
struct Listening<'a> {
    session: &'a Session,
    call: &'a MsgId,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.session.remove_listener(self.call);
    }
}

/// Adds the id of the listen stream that the result ends.
pub fn with_subscription(result: Raw, id: &str) -> Raw {
    meta::set(Some(&result), meta::SUBSCRIPTION_ID, toolbus_mcp::raw(id)).unwrap_or(result)
}
