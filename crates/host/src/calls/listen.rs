//! `subscriptions/listen`: relayed to a modern server, and emulated by subscriptions on a legacy one.
//!
//! Between host and worker, the `subscriptionId` is the bus id of the call; the worker replaces it by the client's own
//! id.

use super::pass_through::with_subscription;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::server::send_setup_request;
use crate::session::{Listener, Session};
use crate::translate::listen::{self, Filter};
use crate::translate::modern_on_legacy::Envelope;
use crate::upstream::Upstream;
use crate::upstream_call::{CallStep, UpstreamCall};
use serde_json::json;
use std::sync::Arc;
use toolbus_mcp::{Outcome, Raw};
use toolbus_upstream::ServerCall;

impl Job {
    /// A modern client listens to a modern server.
    pub(super) async fn relay_listen(&self, upstream: &Arc<Upstream>, call: ServerCall) -> Result<Ended, Stop> {
        let mut call = UpstreamCall::new(call, None);
        let id = self.caller.id().as_str();
        loop {
            let step = tokio::select! {
                biased;
                step = call.next(&self.caller.cancel) => step,
                // A cancelled listen has no answer to wait for.
                () = self.caller.cancel.fired() => return Err(Stop::Cancelled),
            };
            match step {
                CallStep::Notification { method, params } => {
                    let params = listen::tagged(params.as_deref(), id).map(Some).unwrap_or(params);
                    self.notify_caller(method, params).await;
                }
                CallStep::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallStep::Done(Ok(Outcome::Result(result))) => {
                    return Ok(Ended::Outcome(Outcome::Result(with_subscription(result, id))));
                }
                CallStep::Done(Ok(error)) => return Ok(Ended::Outcome(error)),
                CallStep::Done(Err(error)) if error.was_not_run() => return Ok(Ended::NotRun(error)),
                CallStep::Done(Err(error)) => return Err(error.to_rpc_error().into()),
                CallStep::Cancelled => return Err(Stop::Cancelled),
                CallStep::TimedOut => return Err(self.timed_out()),
            }
        }
    }

    /// A modern client listens to a legacy server: it gets the connection's notifications, filtered.
    pub(super) async fn listen_on_legacy(&self, session: &Arc<Session>, envelope: &Envelope) -> Result<Outcome, Stop> {
        let opening = self.server.session_upstream(&self.host, session, || envelope.initialize());
        let upstream = opening.await.map_err(Stop::With)?;
        let wanted = Filter::of_listen(self.rpc.params.as_deref()).map_err(bad_params)?;
        let filter = wanted.honoured_by(&upstream.handshake());
        let id = self.caller.id();
        let acknowledgement: Raw = filter.acknowledgement(id.as_str());
        for uri in &filter.uris {
            if upstream.add_subscription(uri) {
                send_setup_request(&upstream, "resources/subscribe", json!({"uri": uri})).await;
            }
        }
        // The acknowledgement must be the first message on the stream.
        self.notify_caller(listen::ACKNOWLEDGED.to_owned(), Some(acknowledgement)).await;
        session.add_listener(Listener { call: id.clone(), filter: filter.clone() });
        let end = tokio::select! {
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            // The end is reported, so that the client listens again.
            () = upstream.closed() => Ok(Outcome::Result(listen::end(id.as_str()))),
            () = self.host.draining.cancelled() => Ok(Outcome::Result(listen::end(id.as_str()))),
        };
        session.remove_listener(id);
        for uri in &filter.uris {
            if upstream.remove_subscription(uri) && upstream.is_open() {
                send_setup_request(&upstream, "resources/unsubscribe", json!({"uri": uri})).await;
            }
        }
        end
    }
}
