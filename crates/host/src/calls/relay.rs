//! Relays a call between client and server of the same era.

use super::{Job, Stop};
use crate::caller::Joiner;
use crate::session::Session;
use crate::translate::{client_can, listen};
use crate::upstream::{Upstream, Usage};
use crate::upstream_call::{CallStep, UpstreamCall};
use std::sync::Arc;
use toolbus_mcp::{HostEvent, Id, Members, Outcome, Raw, empty_object, meta};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::ServerError;

/// How the server's part of a call ended.
pub enum Ended {
    Outcome(Outcome),
    /// The server did not run it, so it may be sent again.
    NotRun(ServerError),
    /// The server died, and the call is replay-safe.
    Again,
}

impl Job {
    pub(super) async fn relay(
        &self,
        upstream: &Arc<Upstream>,
        mut call: UpstreamCall,
        session: Option<&Arc<Session>>,
    ) -> Result<Ended, Stop> {
        loop {
            match call.next(&self.caller.cancel).await {
                CallStep::Notification { method, params } => self.relay_notification(upstream, method, params).await,
                CallStep::Request { id, method, params } => {
                    self.relay_request(upstream, session, id, method, params).await
                }
                CallStep::Done(Ok(outcome)) => return Ok(Ended::Outcome(outcome)),
                CallStep::Done(Err(error)) if error.was_not_run() => return Ok(Ended::NotRun(error)),
                CallStep::Done(Err(error)) => return self.run_again(&error).await.map(|()| Ended::Again),
                CallStep::Cancelled => return Err(Stop::Cancelled),
                CallStep::TimedOut => return Err(self.timed_out()),
            }
        }
    }

    async fn relay_notification(&self, upstream: &Arc<Upstream>, method: String, params: Option<Raw>) {
        // On a shared connection, such notifications concern all sessions.
        if upstream.usage == Usage::Shared
            && listen::is_listen_notification(&method)
            && self.rpc.method != listen::LISTEN
        {
            upstream.broadcast(&self.host, self.server.name(), &method, params).await;
            return;
        }
        self.notify_caller(method, params).await;
    }

    /// Sends a notification of this call to its caller and to joined calls.
    pub async fn notify_caller(&self, method: String, params: Option<Raw>) {
        if self.rpc.task.is_some() {
            return self.host.task_memory.note_progress(self.caller.id(), &method, params.as_ref());
        }
        for joiner in self.caller.progress.joiners() {
            if let Some(params) = notification_for(&joiner, &method, params.as_ref()) {
                let event =
                    HostEvent::Notification { server: self.server.name().to_owned(), method: method.clone(), params };
                self.host.outbox.live(&joiner.mailbox, &joiner.id, &event).await;
            }
        }
        let event = HostEvent::Notification { server: self.server.name().to_owned(), method, params };
        self.host.outbox.live(self.caller.mailbox(), self.caller.id(), &event).await;
    }

    async fn relay_request(
        &self,
        upstream: &Arc<Upstream>,
        session: Option<&Arc<Session>>,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) {
        let Some(session) = session else { return upstream.answer_or_refuse(&id, &method).await };
        if upstream.usage == Usage::Shared {
            // The host's `initialize` announced these capabilities for all clients; this client may lack them.
            if !self.client_can(&method) {
                return upstream.answer_or_refuse(&id, &method).await;
            }
            session.add_shared_request(id.clone());
        }
        if let Err(error) = self.send_client_request(id.clone(), method, params).await {
            tracing::warn!(%error, server = self.server.name(), "could not deliver a server's request to its client");
            upstream.answer_or_refuse(&id, "").await;
        }
    }

    pub(super) async fn send_client_request(
        &self,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) -> Result<(), toolbus_client::BrokerError> {
        if self.rpc.task.is_some() {
            let reason = format!("{method}: a task has no client to ask");
            return Err(toolbus_client::BrokerError::Rejected { code: Some(ErrorCode::NobodyToAsk), reason, id: None });
        }
        let event = HostEvent::Request { server: self.server.name().to_owned(), id, method, params };
        self.host.outbox.durable(self.caller.mailbox(), self.caller.id(), &event).await
    }

    fn client_can(&self, method: &str) -> bool {
        let initialize = Members::of(self.rpc.client.initialize.as_deref()).ok();
        let capabilities = initialize.and_then(|mut members| members.remove("capabilities"));
        client_can(&capabilities.unwrap_or_else(empty_object), method)
    }
}

/// The notification for a joined call. Progress carries the joined call's own token, and is dropped if it has none.
fn notification_for(joiner: &Joiner, method: &str, params: Option<&Raw>) -> Option<Option<Raw>> {
    if method != "notifications/progress" {
        return Some(params.cloned());
    }
    let token = joiner.progress_token.clone()?;
    let mut params = Members::of(params.map(|params| &**params)).ok()?;
    params.set(meta::PROGRESS_TOKEN, token);
    Some(Some(params.to_raw()))
}
