//! A call whose two ends speak the same era: what the server sends goes to the worker as it is.

use super::{Job, Stop};
use crate::caller::Joiner;
use crate::link::{Link, Use};
use crate::session::Session;
use crate::translate::{client_can, listen};
use crate::upstream_call::{Step, UpstreamCall};
use std::sync::Arc;
use toolbus_mcp::{HostEvent, Id, Members, Outcome, Raw, empty_object, meta};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::ServerError;

/// How the server's part of a call ended.
pub enum Ended {
    Outcome(Outcome),
    /// The server had not begun; it can be asked again.
    NotRun(ServerError),
    /// The server died over it, and it may run twice.
    Again,
}

impl Job {
    pub(super) async fn relay(
        &self,
        link: &Arc<Link>,
        mut call: UpstreamCall,
        session: Option<&Arc<Session>>,
    ) -> Result<Ended, Stop> {
        loop {
            match call.next(&self.caller.cancel).await {
                Step::Notification { method, params } => self.pass_notification(link, method, params).await,
                Step::Request { id, method, params } => self.pass_request(link, session, id, method, params).await,
                Step::Done(Ok(outcome)) => return Ok(Ended::Outcome(outcome)),
                Step::Done(Err(error)) if error.was_not_run() => return Ok(Ended::NotRun(error)),
                Step::Done(Err(error)) => return self.run_again(&error).await.map(|()| Ended::Again),
                Step::Cancelled => return Err(Stop::Cancelled),
                Step::TimedOut => return Err(self.timed_out()),
            }
        }
    }

    async fn pass_notification(&self, link: &Arc<Link>, method: String, params: Option<Raw>) {
        // On a connection that others share, news that happen to come during this call are theirs as well.
        if link.usage == Use::Shared && listen::is_news(&method) && self.rpc.method != listen::LISTEN {
            link.spread(&self.host, self.server.name(), &method, params).await;
            return;
        }
        self.tell(method, params).await;
    }

    /// A notification that belongs to this call.
    pub async fn tell(&self, method: String, params: Option<Raw>) {
        if self.rpc.task.is_some() {
            return self.host.task_board.hear(self.caller.id(), &method, params.as_ref());
        }
        for joiner in self.caller.progress.joiners() {
            if let Some(params) = told_to(&joiner, &method, params.as_ref()) {
                let event =
                    HostEvent::Notification { server: self.server.name().to_owned(), method: method.clone(), params };
                self.host.outbox.live(&joiner.mailbox, &joiner.id, &event).await;
            }
        }
        let event = HostEvent::Notification { server: self.server.name().to_owned(), method, params };
        self.host.outbox.live(self.caller.mailbox(), self.caller.id(), &event).await;
    }

    async fn pass_request(
        &self,
        link: &Arc<Link>,
        session: Option<&Arc<Session>>,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) {
        let Some(session) = session else { return link.answer_or_refuse(&id, &method).await };
        if link.usage == Use::Shared {
            // The server was told that clients can be asked; whether this one can, it said itself.
            if !self.client_can(&method) {
                return link.answer_or_refuse(&id, &method).await;
            }
            session.set_asked(id.clone());
        }
        if let Err(error) = self.ask(id.clone(), method, params).await {
            tracing::warn!(%error, server = self.server.name(), "a server's request did not reach its client");
            link.answer_or_refuse(&id, "").await;
        }
    }

    pub(super) async fn ask(
        &self,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) -> Result<(), toolbus_client::BrokerError> {
        if self.rpc.task.is_some() {
            let reason = format!("{method}: a task has nobody to ask");
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

/// A call's notification for one that was joined to it; progress goes by the joiner's own token, if it has one.
fn told_to(joiner: &Joiner, method: &str, params: Option<&Raw>) -> Option<Option<Raw>> {
    if method != "notifications/progress" {
        return Some(params.cloned());
    }
    let token = joiner.progress_token.clone()?;
    let mut params = Members::of(params.map(|params| &**params)).ok()?;
    params.set(meta::PROGRESS_TOKEN, token);
    Some(Some(params.to_raw()))
}
