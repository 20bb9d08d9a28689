//! A modern client's `subscriptions/listen` over several servers, or over one that is unavailable. Every available
//! server gets its own subscription. List changes are also detected in manifests, as hosts connect and disconnect.

use super::Frontend;
use super::call::CallStep;
use super::news::NotifiedChanges;
use super::upstream_call::{Purpose, UpstreamCall};
use crate::bus::Hosts;
use crate::view::{Upstream, View};
use futures_util::future::select_all;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_mcp::{Era, Id, ListKind, Members, Message, NameKey, Notification, Outcome, Raw, meta, raw};

/// How long the acknowledgement to the client waits for those of the servers.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
const RESOURCES: &str = "resourceSubscriptions";

pub struct Listen {
    kinds: Vec<ListKind>,
    seen: Arc<View>,
    hosts: watch::Receiver<Hosts>,
    subscriptions: Vec<Subscription>,
    /// URIs whose subscription a server acknowledged.
    honoured: Vec<String>,
    acknowledge_by: Option<Instant>,
    end: Instant,
    notified: NotifiedChanges,
    ready: VecDeque<Notification>,
}

/// The subscription at one server.
struct Subscription {
    call: UpstreamCall,
    acknowledged: bool,
}

impl Listen {
    pub async fn start(frontend: &Arc<Frontend>, view: Arc<View>, params: Option<Raw>) -> Self {
        let filter = Members::of(params.as_ref())
            .ok()
            .and_then(|params| serde_json::from_str::<Map<String, Value>>(params.get("notifications")?.get()).ok());
        let filter = filter.unwrap_or_default();
        let wants = |kind: &ListKind| filter.get(flag(*kind)).and_then(Value::as_bool) == Some(true);
        let mut subscriptions = Vec::new();
        for (index, uris) in requested_uris(frontend, &view, &filter) {
            let upstream = &view.upstreams()[index];
            let request = ("subscriptions/listen", Some(subscription_params(params.as_ref(), &uris)));
            let purpose = Purpose::Listen { acknowledged: false };
            if let Ok(call) = UpstreamCall::start(frontend, None, upstream, Era::Modern, request, purpose).await {
                subscriptions.push(Subscription { call, acknowledged: false });
            }
        }
        let now = Instant::now();
        Self {
            kinds: ListKind::ALL.into_iter().filter(wants).collect(),
            seen: view,
            hosts: frontend.worker.hosts(),
            subscriptions,
            honoured: Vec::new(),
            acknowledge_by: Some(now + ACKNOWLEDGE_TIMEOUT),
            end: now + frontend.worker.options.listen_deadline,
            notified: NotifiedChanges::default(),
            ready: VecDeque::new(),
        }
    }

    pub async fn step(&mut self, frontend: &Arc<Frontend>, id: &Id) -> CallStep {
        loop {
            if let Some(by) = self.acknowledge_by
                && (Instant::now() >= by || self.subscriptions.iter().all(|subscription| subscription.acknowledged))
            {
                self.acknowledge_by = None;
                return CallStep::Message(self.acknowledgement(id).into());
            }
            if self.acknowledge_by.is_none()
                && let Some(notification) = self.ready.pop_front()
            {
                return CallStep::Message(notification.into());
            }
            let wake = self.acknowledge_by.unwrap_or(self.end);
            tokio::select! {
                (index, step) = next_step(&mut self.subscriptions, frontend, id) => self.handle_step(index, step),
                Ok(()) = self.hosts.changed() => self.check_lists(frontend, id),
                () = tokio::time::sleep_until(wake) => {
                    if self.acknowledge_by.is_none() {
                        return CallStep::Done(Outcome::Result(ended_listen(None, id)));
                    }
                }
            }
        }
    }

    fn handle_step(&mut self, index: usize, step: CallStep) {
        match step {
            CallStep::Message(Message::Notification(notification)) if notification.method == ACKNOWLEDGED => {
                self.subscriptions[index].acknowledged = true;
                self.honoured.extend(acknowledged_uris(notification.params.as_ref()));
            }
            CallStep::Message(Message::Notification(notification)) => {
                self.notified.record(&notification.method, &self.subscriptions[index].call.upstream);
                self.ready.push_back(notification);
            }
            CallStep::Message(_) => {}
            CallStep::Done(_) | CallStep::Cancelled => drop(self.subscriptions.remove(index)),
        }
    }

    fn check_lists(&mut self, frontend: &Frontend, id: &Id) {
        let view = frontend.worker.view();
        for method in self.notified.unannounced(&self.seen, &view, &self.kinds) {
            let mut notification = Notification { method: method.to_owned(), params: None };
            under_subscription(&mut notification, id);
            self.ready.push_back(notification);
        }
        self.seen = view;
    }

    fn acknowledgement(&mut self, id: &Id) -> Notification {
        let mut honoured: Map<String, Value> =
            self.kinds.iter().map(|kind| (flag(*kind).to_owned(), true.into())).collect();
        if !self.honoured.is_empty() {
            honoured.insert(RESOURCES.into(), json!(self.honoured));
        }
        let params = Some(raw(&json!({"notifications": honoured})));
        let mut notification = Notification { method: ACKNOWLEDGED.into(), params };
        under_subscription(&mut notification, id);
        notification
    }
}

async fn next_step(subscriptions: &mut [Subscription], frontend: &Arc<Frontend>, id: &Id) -> (usize, CallStep) {
    if subscriptions.is_empty() {
        return std::future::pending().await;
    }
    let steps = subscriptions.iter_mut().map(|subscription| Box::pin(subscription.call.step(frontend, id)));
    let (step, index, _) = select_all(steps).await;
    (index, step)
}

/// The servers to subscribe at, with the URIs that each of them owns. All other filters go to every available server
/// with the matching capability.
fn requested_uris(frontend: &Frontend, view: &View, filter: &Map<String, Value>) -> BTreeMap<usize, Vec<String>> {
    let mut requested_uris: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let uris = filter.get(RESOURCES).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for uri in uris {
        if let Some(owner) = frontend.worker.owner(view, &NameKey::Uri(uri.to_owned())) {
            requested_uris.entry(owner.index).or_default().push(uri.to_owned());
        }
    }
    let concerns = |upstream: &&Arc<Upstream>| {
        filter.keys().filter(|name| *name != RESOURCES).any(|name| match kind_of(name) {
            Some(kind) => upstream.has_capability(Era::Modern, kind.capability()),
            None => true,
        })
    };
    for upstream in view.upstreams().iter().filter(|upstream| !upstream.is_out()).filter(concerns) {
        requested_uris.entry(upstream.index).or_default();
    }
    requested_uris
}

fn subscription_params(params: Option<&Raw>, uris: &[String]) -> Raw {
    let mut params = Members::of(params).unwrap_or_default().clone();
    let mut filter: Map<String, Value> =
        params.get("notifications").and_then(|filter| serde_json::from_str(filter.get()).ok()).unwrap_or_default();
    match uris {
        [] => drop(filter.remove(RESOURCES)),
        uris => drop(filter.insert(RESOURCES.into(), json!(uris))),
    }
    params.set("notifications", raw(&filter));
    params.into_raw()
}

fn acknowledged_uris(params: Option<&Raw>) -> Vec<String> {
    let read = || {
        let params: Value = serde_json::from_str(params?.get()).ok()?;
        let uris = params.get("notifications")?.get(RESOURCES)?.as_array()?;
        Some(uris.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect())
    };
    read().unwrap_or_default()
}

fn kind_of(flag_name: &str) -> Option<ListKind> {
    ListKind::ALL.into_iter().find(|kind| flag(*kind) == flag_name)
}

fn flag(kind: ListKind) -> &'static str {
    match kind {
        ListKind::Tools => "toolsListChanged",
        ListKind::Prompts => "promptsListChanged",
        ListKind::Resources | ListKind::ResourceTemplates => "resourcesListChanged",
    }
}

pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Sets the subscription id of a notification to the client's request id.
pub fn under_subscription(notification: &mut Notification, id: &Id) {
    let set = meta::set(notification.params.as_ref(), meta::SUBSCRIPTION_ID, id.to_raw());
    if let Ok(params) = set {
        notification.params = Some(params);
    }
}

/// The result that ends a `subscriptions/listen`.
pub fn ended_listen(result: Option<&Raw>, id: &Id) -> Raw {
    let base = result.cloned().unwrap_or_else(|| raw(&serde_json::json!({"resultType": "complete"})));
    meta::set(Some(&base), meta::SUBSCRIPTION_ID, id.to_raw()).unwrap_or(base)
}
