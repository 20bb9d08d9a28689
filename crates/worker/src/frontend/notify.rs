//! Notifications of the client: cancellations are matched to their call, the rest is routed to its servers.

use super::{Description, Frontend, Sent};
use crate::view::Upstream;
use crate::worker::lock;
use serde_json::json;
use std::sync::Arc;
use toolbus_mcp::{
    ClientHello, Era, HostRequest, Id, LATEST_LEGACY, Members, Notification, Notify, Raw, is_plain_notification, raw,
};

impl Frontend {
    /// Handles a notification of the client.
    pub async fn notification(&self, era: Era, notification: Notification) {
        let Notification { method, params } = notification;
        if method == "notifications/cancelled" {
            return self.cancel(params).await;
        }
        let view = self.worker.view();
        match (view.sole(), method.as_str()) {
            // An unavailable host opens the server's session itself when it is back, including this notification.
            (Some(upstream), "notifications/initialized") if upstream.is_out() => {}
            (Some(upstream), _) => {
                if let Some(upstream) = self.host_with_state(upstream) {
                    self.notify(upstream, era, &method, params).await;
                }
            }
            (None, "notifications/progress") => {
                let token = Members::of(params.as_ref())
                    .ok()
                    .and_then(|params| Some(params.get("progressToken")?.get().to_owned()));
                let requester = token.and_then(|token| lock(&self.state).pending_requests.requester_of_token(&token));
                if let Some(upstream) = requester.and_then(|(host, server)| view.find(&host, &server).cloned()) {
                    self.notify(&upstream, era, &method, params).await;
                }
            }
            (None, "notifications/roots/list_changed") => {
                for upstream in view.upstreams().iter().filter(|upstream| !upstream.is_out()) {
                    if let Some(upstream) = self.host_with_state(upstream) {
                        self.notify(upstream, era, &method, params.clone()).await;
                    }
                }
            }
            (None, method) if !is_plain_notification(method) => {
                let request = method.strip_prefix("notifications/").unwrap_or(method);
                let meant = self.worker.meant(&view, request, params.as_ref());
                if let Some(upstream) = meant.as_ref().and_then(|one| self.host_with_state(one)) {
                    self.notify(upstream, era, method, params).await;
                }
            }
            // Hosts open the sessions of several servers themselves.
            (None, _) => {}
        }
    }

    /// Cancels the latest call with the id, in case the client has reused the id.
    async fn cancel(&self, params: Option<Raw>) {
        let Ok(params) = Members::of(params.as_ref()) else { return };
        let mut params = params.clone();
        let Some(id) = params.get("requestId").and_then(Id::from_raw) else { return };
        let target = {
            let state = lock(&self.state);
            let latest = state.calls.iter().filter(|(_, flight)| flight.id == id).max_by_key(|(number, _)| **number);
            let Some((_, flight)) = latest else { return };
            let mut sent = lock(&flight.sent);
            sent.is_cancelled = true;
            // Without a connected host no reply would come, so the call ends here. The cancellation is still sent:
            // otherwise the host would run the call when it is back.
            if !self.is_reachable(&sent) {
                flight.abort.cancel();
            }
            sent.target.as_ref().map(|target| (Arc::clone(&target.upstream), target.bus_id.clone(), target.era))
        };
        if let Some((upstream, bus_id, era)) = target {
            params.set("requestId", raw(&bus_id));
            let params = params.into_raw();
            self.notify(&upstream, era, "notifications/cancelled", Some(params)).await;
        }
    }

    fn is_reachable(&self, sent: &Sent) -> bool {
        let Some(target) = &sent.target else { return false };
        let view = self.worker.view();
        view.find(&target.upstream.host, target.upstream.server())
            .is_some_and(|upstream| upstream.away_since_ms.is_none())
    }

    /// A legacy server may have to be opened for the notification, with the client's `initialize` or what stands for it.
    fn initialize_for(&self, era: Era) -> Option<Raw> {
        let state = lock(&self.state);
        match (era, &state.description) {
            (Era::Legacy, _) => state.initialize.clone(),
            (Era::Modern, description) => description.as_ref().map(|Description { capabilities, client_info }| {
                let nameless = || raw(&json!({"name": "unknown", "version": "unknown"}));
                let info = client_info.clone().unwrap_or_else(nameless);
                raw(&json!({"protocolVersion": LATEST_LEGACY, "capabilities": capabilities, "clientInfo": info}))
            }),
        }
    }

    async fn notify(&self, upstream: &Upstream, era: Era, method: &str, params: Option<Raw>) {
        let notify = Notify {
            server: upstream.server().to_owned(),
            session: self.session.clone(),
            client: ClientHello { initialize: self.initialize_for(era), era },
            method: method.to_owned(),
            params,
        };
        self.mark_contacted(&upstream.host);
        self.send(&upstream.host, HostRequest::Notify(notify)).await;
    }
}
