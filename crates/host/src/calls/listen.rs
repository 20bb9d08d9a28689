//! `subscriptions/listen`: on a modern server it is passed on, on a legacy server it is made of subscriptions.
//!
//! The mark of the stream (`subscriptionId`) is the bus id of the call on this side of the worker; the worker puts the
//! client's own id in its place.

use super::pass_through::with_subscription;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::link::Link;
use crate::server::tell;
use crate::session::{Listener, Session};
use crate::translate::listen::{self, Filter};
use crate::translate::modern_on_legacy::Envelope;
use crate::upstream_call::{Step, UpstreamCall};
use serde_json::json;
use std::sync::Arc;
use toolbus_mcp::{Outcome, Raw};
use toolbus_upstream::ServerCall;

impl Job {
    /// A modern client listens to a modern server.
    pub(super) async fn relay_listen(&self, link: &Arc<Link>, call: ServerCall) -> Result<Ended, Stop> {
        let mut call = UpstreamCall::new(call, None);
        let id = self.caller.id().as_str();
        loop {
            let step = tokio::select! {
                biased;
                step = call.next(&self.caller.cancel) => step,
                // Nothing follows the end of a listen.
                () = self.caller.cancel.fired() => return Err(Stop::Cancelled),
            };
            match step {
                Step::Notification { method, params } => {
                    let params = listen::tagged(params.as_deref(), id).map(Some).unwrap_or(params);
                    self.tell(method, params).await;
                }
                Step::Request { id, method, .. } => link.answer_or_refuse(&id, &method).await,
                Step::Done(Ok(Outcome::Result(result))) => {
                    return Ok(Ended::Outcome(Outcome::Result(with_subscription(result, id))));
                }
                Step::Done(Ok(error)) => return Ok(Ended::Outcome(error)),
                Step::Done(Err(error)) if error.was_not_run() => return Ok(Ended::NotRun(error)),
                Step::Done(Err(error)) => return Err(error.to_rpc_error().into()),
                Step::Cancelled => return Err(Stop::Cancelled),
                Step::TimedOut => return Err(self.timed_out()),
            }
        }
    }

    /// A modern client listens to a legacy server: its connection's news, filtered.
    pub(super) async fn listen_on_legacy(&self, session: &Arc<Session>, envelope: &Envelope) -> Result<Outcome, Stop> {
        let opening = self.server.session_link(&self.host, session, || envelope.initialize());
        let link = opening.await.map_err(Stop::With)?;
        let wanted = Filter::of_listen(self.rpc.params.as_deref()).map_err(bad_params)?;
        let filter = wanted.honoured_by(&link.hello());
        let id = self.caller.id();
        let acknowledgement: Raw = filter.acknowledgement(id.as_str());
        for uri in &filter.uris {
            if link.subscribed(uri) {
                tell(&link, "resources/subscribe", json!({"uri": uri})).await;
            }
        }
        // The acknowledgement has to be the first on the stream.
        self.tell(listen::ACKNOWLEDGED.to_owned(), Some(acknowledgement)).await;
        session.add_listener(Listener { call: id.clone(), filter: filter.clone() });
        let end = tokio::select! {
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            // A client that is told of the end listens again; silence would be worse.
            () = link.closed() => Ok(Outcome::Result(listen::end(id.as_str()))),
            () = self.host.shutdown.cancelled() => Ok(Outcome::Result(listen::end(id.as_str()))),
        };
        session.remove_listener(id);
        for uri in &filter.uris {
            if link.unsubscribed(uri) && link.is_open() {
                tell(&link, "resources/unsubscribe", json!({"uri": uri})).await;
            }
        }
        end
    }
}
