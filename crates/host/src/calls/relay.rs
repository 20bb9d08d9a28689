//! Relays what a server sends during a call to the caller: notifications, and requests to the client.

use super::flow::{Flow, FlowEnd, Kind};
use super::slot::Slot;
use crate::host::Host;
use crate::translate::client_can;
use crate::upstream::Usage;
use toolbus_client::BrokerError;
use toolbus_mcp::{HostEvent, Id, Members, Raw, meta};
use toolbus_protocol::ErrorCode;

impl Host {
    /// Sends a notification of a call to its caller and to joined calls.
    pub async fn notify_caller(&self, slot: &Slot, method: String, params: Option<Raw>) {
        if slot.is_task() {
            return self.task_memory.note_progress(slot.id(), &method, params.as_ref());
        }
        for joiner in self.calls.joiners_of(slot.no) {
            if let Some(params) = notification_for(&joiner, &method, params.as_ref()) {
                let event =
                    HostEvent::Notification { server: slot.server.name().to_owned(), method: method.clone(), params };
                self.outbox.live(joiner.mailbox(), joiner.id(), &event).await;
            }
        }
        let event = HostEvent::Notification { server: slot.server.name().to_owned(), method, params };
        self.outbox.live(slot.mailbox(), slot.id(), &event).await;
    }

    /// Sends a server's request to the client as a durable message.
    pub(super) async fn send_client_request(
        &self,
        slot: &Slot,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) -> Result<(), BrokerError> {
        if slot.is_task() {
            let reason = format!("{method}: a task has no client to ask");
            return Err(BrokerError::Rejected { code: Some(ErrorCode::NobodyToAsk), reason, id: None });
        }
        let event = HostEvent::Request { server: slot.server.name().to_owned(), id, method, params };
        self.outbox.durable(slot.mailbox(), slot.id(), &event).await
    }
}

impl Flow {
    /// A request of the server.
    pub(super) async fn request(&mut self, id: Id, method: String, params: Option<Raw>) -> Option<FlowEnd> {
        if let Kind::Resumable(_) = self.kind {
            return self.request_of_legacy_server(id, method, params).await;
        }
        let Some(session) = self.session.as_ref().filter(|_| matches!(self.kind, Kind::Pass)) else {
            self.upstream.answer_or_refuse(&id, &method).await;
            return None;
        };
        if self.upstream.usage == Usage::Shared {
            // The host's `initialize` announced these capabilities for all clients; this client may lack them.
            if !client_of_call_can(&self.slot, &method) {
                self.upstream.answer_or_refuse(&id, &method).await;
                return None;
            }
            session.add_shared_request(id.clone());
        }
        if let Err(error) = self.host.send_client_request(&self.slot, id.clone(), method, params).await {
            let server = self.slot.server.name();
            tracing::warn!(%error, server, "could not deliver a server's request to its client");
            self.upstream.answer_or_refuse(&id, "").await;
        }
        None
    }
}

fn client_of_call_can(slot: &Slot, method: &str) -> bool {
    let initialize = Members::of(slot.parsed.rpc.client.initialize.as_ref()).ok();
    initialize
        .and_then(|members| members.get("capabilities"))
        .is_some_and(|capabilities| client_can(capabilities, method))
}

/// The notification for a joined call. Progress carries the joined call's own token, and is dropped if it has none.
fn notification_for(joiner: &Slot, method: &str, params: Option<&Raw>) -> Option<Option<Raw>> {
    if method != "notifications/progress" {
        return Some(params.cloned());
    }
    let token = joiner.progress_token()?;
    let mut params = Members::of(params).ok()?.clone();
    params.set(meta::PROGRESS_TOKEN, token);
    Some(Some(params.into_raw()))
}
