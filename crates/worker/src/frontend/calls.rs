//! What a call needs of its session: where a cancellation goes, whether an absent host rejects it, and its host's events as
//! messages to the client.

use super::upstream_call::Purpose;
use super::{Frontend, Target};
use crate::view::Upstream;
use crate::worker::lock;
use std::sync::Arc;
use toolbus_mcp::{Era, HostEvent, HostRequest, Members, Message, Notification, Raw, Request, RpcError};

impl Frontend {
    /// Sets where a cancellation of the client's call goes.
    pub(super) fn set_target(&self, number: Option<u64>, upstream: &Arc<Upstream>, bus_id: &str, era: Era) {
        if let Some(number) = number
            && let Some(flight) = lock(&self.state).calls.get(&number)
        {
            lock(&flight.sent).target = Some(Target { upstream: Arc::clone(upstream), bus_id: bus_id.to_owned(), era });
        }
    }

    /// Whether the client has cancelled its call.
    pub(super) fn is_cancelled(&self, number: Option<u64>) -> bool {
        let state = lock(&self.state);
        let flight = number.and_then(|number| state.calls.get(&number));
        flight.is_some_and(|flight| lock(&flight.sent).is_cancelled)
    }

    /// Whether a request is rejected while its host is away, by the worker's options or by the tool's manifest.
    pub(super) fn fails_fast(
        &self,
        upstream: &Upstream,
        purpose: Purpose,
        (method, params): (&str, Option<&Raw>),
    ) -> bool {
        if matches!(purpose, Purpose::Initialize | Purpose::Listen { .. }) {
            return false;
        }
        let fail_fast = &upstream.manifest().fail_fast;
        let named = || Members::of(params).ok().and_then(|params| params.text("name"));
        let by_manifest = || method == "tools/call" && fail_fast.contain(named().as_deref());
        self.worker.options.fail_fast || (!fail_fast.is_empty() && by_manifest())
    }

    /// Translates an event of a host into a message to the client.
    pub(super) async fn translate(self: &Arc<Self>, host: &str, era: Era, event: HostEvent) -> Option<Message> {
        match event {
            HostEvent::Notification { server, method, params }
                if method == "notifications/cancelled" && era == Era::Legacy =>
            {
                let params = lock(&self.state).pending_requests.cancelled(host, &server, params.as_ref())?;
                Some(Notification { method, params: Some(params) }.into())
            }
            HostEvent::Notification { method, params, .. } => Some(Notification { method, params }.into()),
            HostEvent::Request { server, id, method, params } => {
                let limit = self.worker.options.max_questions;
                // Modern clients can't receive requests; their hosts handle them.
                let pending_id = match era {
                    Era::Legacy => {
                        lock(&self.state).pending_requests.register(host, &server, id.clone(), params.as_ref(), limit)
                    }
                    Era::Modern => None,
                };
                if let Some(id) = pending_id {
                    return Some(Request { id, method, params }.into());
                }
                let refusal =
                    RpcError::new(toolbus_mcp::codes::INVALID_REQUEST, "the client does not accept requests now");
                let answer = toolbus_mcp::Answer { server, session: self.session.clone(), id, outcome: refusal.into() };
                self.send(host, HostRequest::Answer(answer)).await;
                None
            }
            HostEvent::Closed { server, reason } => {
                tracing::debug!(%host, %server, %reason, "the host closed a server's session");
                None
            }
        }
    }
}
