//! Dispatches the messages of the host's mailbox. Requests go to the call machine; answers, cancels and session closes are
//! handled at once, because servers or callers wait for them.

use crate::calls::{NewCall, ParsedCall, PendingNotification, check_names, keep_listening};
use crate::failure;
use crate::host::Host;
use crate::original;
use crate::outbox::Form;
use crate::session::SessionId;
use crate::translate::legacy_on_modern::ClientIdentity;
use crate::translate::modern_on_legacy;
use crate::upstream::{Upstream, Usage, host_initialize};
use std::sync::Arc;
use toolbus_call::{CancelBy, Event};
use toolbus_mcp::{
    Answer, Era, HostReply, HostRequest, Members, Notify, Outcome, Raw, Rpc, is_plain_notification, raw,
};
use toolbus_protocol::{InboxKind, InboxMessage};

const ROOTS_CHANGED: &str = "notifications/roots/list_changed";

impl Host {
    /// Handles one message of the host's mailbox. Never waits for a server.
    pub async fn dispatch(self: &Arc<Self>, message: InboxMessage) {
        let message = Arc::new(self.qualify_sender(message));
        if message.kind != InboxKind::McpRequest {
            return self.outbox.ack(&message).await;
        }
        let text = message.body.text().unwrap_or_default();
        match HostRequest::parse(text) {
            Ok(HostRequest::Rpc(rpc)) => self.begin_rpc(message, rpc).await,
            Ok(HostRequest::Earlier(rpc)) => {
                let outcome = self.earlier_call(&message, rpc);
                self.outbox.reply(&message, &HostReply::Rpc(outcome)).await;
            }
            Ok(HostRequest::Notify(notify)) => self.begin_notify(message, notify).await,
            Ok(HostRequest::Answer(answer)) => {
                self.outbox.ack(&message).await;
                let host = Arc::clone(self);
                self.tracker.spawn(async move { host.deliver_answer(&message, answer).await });
            }
            Ok(HostRequest::Close { session }) => {
                self.outbox.ack(&message).await;
                let id = SessionId { mailbox: message.from.session_id.to_string(), key: session };
                let host = Arc::clone(self);
                self.tracker.spawn(async move {
                    for server in &host.servers {
                        server.close_session(&id).await;
                    }
                });
            }
            Ok(HostRequest::ApprovalsList) => {
                let outcome = self.list_approvals(&message.from);
                self.outbox.reply(&message, &HostReply::Rpc(outcome)).await;
            }
            Ok(HostRequest::ApprovalsShow { id }) => {
                let outcome = self.show_approval(&message.from, &id);
                self.outbox.reply(&message, &HostReply::Rpc(outcome)).await;
            }
            Ok(HostRequest::Admin(request)) => {
                let host = Arc::clone(self);
                self.tracker.spawn(async move {
                    let outcome = host.admin_query(&message, request).await;
                    host.outbox.reply(&message, &HostReply::Rpc(outcome)).await;
                });
            }
            Ok(HostRequest::ApprovalsDecide(decision)) => {
                let host = Arc::clone(self);
                self.tracker.spawn(async move {
                    let outcome = host.decide_approval(&message.from, decision).await;
                    host.outbox.reply(&message, &HostReply::Rpc(outcome)).await;
                });
            }
            Err(error) => match original::parse(message.body.as_bytes()) {
                Some(operation) => self.begin_original(message, operation).await,
                None => {
                    let reply = original::error(&format!("bad mcp request: {error}"));
                    self.outbox.reply_text(&message, &reply).await;
                }
            },
        }
    }

    async fn begin_original(
        self: &Arc<Self>,
        message: Arc<InboxMessage>,
        operation: Result<original::Operation, serde_json::Error>,
    ) {
        match operation {
            Ok(original::Operation::Manifest) => {
                let host = Arc::clone(self);
                self.tracker.spawn(original::manifest(host, message));
            }
            Ok(original::Operation::Call { tool, arguments }) => {
                let host = Arc::clone(self);
                self.tracker.spawn(original::call(host, message, tool, arguments));
            }
            Err(error) => {
                let reply = original::error(&format!("bad mcp request: {error}"));
                self.outbox.reply_text(&message, &reply).await;
            }
        }
    }

    async fn begin_rpc(self: &Arc<Self>, message: Arc<InboxMessage>, rpc: Rpc) {
        if let Err(error) = check_names(&rpc.server, &rpc.session) {
            return self.refuse(&message, error).await;
        }
        if rpc.task.is_some() {
            return self.begin_task(message, rpc).await;
        }
        let Some(server) = self.server(&rpc.server).map(Arc::clone) else {
            return self.refuse(&message, failure::unknown_server(&rpc.server)).await;
        };
        let parsed = ParsedCall::new(&message, rpc, Form::Mcp);
        let new = NewCall { request: message, parsed, server, form: Form::Mcp, operator: None };
        let request = self.request_of(&new);
        self.admit(request, new);
    }

    /// Answers from the calls of the sender's own agent.
    fn earlier_call(&self, message: &Arc<InboxMessage>, rpc: Rpc) -> Outcome {
        if let Err(error) = check_names(&rpc.server, &rpc.session) {
            return error.into();
        }
        let Some(server) = self.server(&rpc.server) else { return failure::unknown_server(&rpc.server).into() };
        let window = server.config.calls.join_window;
        let parsed = ParsedCall::new(message, rpc, Form::Mcp);
        let (journal, caller) = (&self.options.journal, &message.from.session_id);
        let is_known = self.calls.knows_equal(journal, caller, &parsed.content, window);
        Outcome::Result(raw(&serde_json::json!({"known": is_known})))
    }

    async fn begin_notify(self: &Arc<Self>, message: Arc<InboxMessage>, notify: Notify) {
        self.outbox.ack(&message).await;
        if notify.method == "notifications/cancelled" {
            return self.cancel_by_notification(&message, &notify);
        }
        let Some(server) = self.server(&notify.server).map(Arc::clone) else { return };
        // Of the protocol's own notifications, modern clients send none to servers.
        let is_unknown_there = notify.client.era == Era::Modern && is_plain_notification(&notify.method);
        if is_unknown_there || check_names(&notify.server, &notify.session).is_err() {
            return;
        }
        if !self.authorise_notification(message.from.role.as_deref(), &notify) {
            return tracing::debug!(method = notify.method, "refused a client's notification");
        }
        let session = SessionId { mailbox: message.from.session_id.to_string(), key: notify.session.clone() };
        let role = message.from.role.as_ref().map(ToString::to_string);
        self.queue_notification(PendingNotification { server: server.index, notify, session, role });
    }

    /// In a worker's `notifications/cancelled`, `requestId` is the bus id of the call.
    fn cancel_by_notification(self: &Arc<Self>, message: &InboxMessage, notify: &Notify) {
        let Ok(params) = Members::of(notify.params.as_ref()) else { return };
        if let Some(id) = params.text("requestId") {
            let by = CancelBy::Caller(message.from.session_id.clone());
            self.feed(Event::CancelId { id: id.into(), by, reason: params.text("reason") });
        }
    }

    /// Forwards a client's notification, once its predecessors in the session are sent.
    pub async fn forward_notification(self: &Arc<Self>, pending: PendingNotification) {
        let PendingNotification { server, notify, session, role } = pending;
        // The rules may have changed while it waited.
        if !self.authorise_notification(role.as_deref(), &notify) {
            return;
        }
        let server = Arc::clone(&self.servers[server]);
        let Ok(eras) = server.eras(self).await else { return };
        let client = notify.client.era;
        let is_modern_server = server.era_for(client, &eras) == Era::Modern;
        if is_modern_server && !is_plain_notification(&notify.method) {
            // The server has no sessions.
            if let Ok(upstream) = server.modern_upstream(self, &eras).await {
                send_notification(&upstream, &notify.method, notify.params).await;
            }
            return;
        }
        let Ok(session) = server.session(self, session, client, role.as_deref()) else { return };
        let initialize = notify.client.initialize.unwrap_or_else(|| host_initialize(Usage::Own));
        let is_initialized = notify.method == "notifications/initialized";
        if is_modern_server {
            if is_initialized && let Ok(identity) = ClientIdentity::of_initialize(&initialize) {
                keep_listening(self, &server, &session, &eras, identity).await;
            }
            return;
        }
        let open = session.upstream.lock().await.clone().filter(|upstream| upstream.is_open());
        let upstream = match open {
            Some(upstream) => upstream,
            // It is about the connection, and the first call that opens one says the same.
            None if is_initialized || notify.method == ROOTS_CHANGED => return,
            // Opening the connection sends `notifications/initialized`.
            None => match server.session_upstream(self, &session, || initialize).await {
                Ok(upstream) => upstream,
                Err(_) => match server.known_eras().filter(|now| !now.speaks(Era::Legacy)) {
                    // The attempt has shown that the server does not speak the legacy era.
                    Some(now) => match server.modern_upstream(self, &now).await {
                        Ok(upstream) => upstream,
                        Err(_) => return,
                    },
                    None => return,
                },
            },
        };
        if is_initialized && !session.set_initialized(true) {
            return;
        }
        let params = match client {
            Era::Legacy => notify.params,
            Era::Modern => modern_on_legacy::without_envelope(notify.params.as_ref()).unwrap_or(notify.params),
        };
        send_notification(&upstream, &notify.method, params).await;
    }

    async fn deliver_answer(&self, message: &InboxMessage, answer: Answer) {
        let id = SessionId { mailbox: message.from.session_id.to_string(), key: answer.session };
        let Some(server) = self.server(&answer.server) else { return };
        let Some(session) = server.known_session(&id) else { return };
        let Err(outcome) = session.answer_client_request(&answer.id, answer.outcome) else { return };
        let Some(upstream) = session.upstream.lock().await.clone() else { return };
        if upstream.usage == Usage::Shared && !session.take_shared_request(&answer.id) {
            tracing::debug!(server = server.name(), "ignored an answer to a request that this client did not get");
            return;
        }
        if let Err(error) = upstream.connection.answer(&answer.id, outcome).await {
            tracing::debug!(%error, server = server.name(), "could not forward a client's answer to its server");
        }
    }
}

async fn send_notification(upstream: &Upstream, method: &str, params: Option<Raw>) {
    if let Err(error) = upstream.connection.notify(method, params).await {
        tracing::debug!(%error, method, "could not forward a client's notification");
    }
}
