//! Routing of a client's request: answered locally, forwarded to the only server, or merged and routed among several.

use super::call::Work;
use super::listen::Listen;
use super::tasks::{self, TaskRequest, offer};
use super::upstream_call::{Purpose, UpstreamCall};
use super::{Frontend, fanout, initialize, merge};
use crate::error;
use crate::taken_routes::RouteKey;
use crate::view::{Upstream, View};
use crate::worker::lock;
use std::sync::Arc;
use toolbus_mcp::{Era, ListKind, Members, NameKey, Outcome, Raw, Request, RpcError, codes, empty_object, routed_name};

/// Methods of the legacy era that the modern era has removed.
const LEGACY_ONLY: &[&str] = &[
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/result",
    "tasks/list",
];

pub async fn start(frontend: &Arc<Frontend>, number: u64, era: Era, request: Request) -> Work {
    let Request { method, params, .. } = request;
    if let Some(outcome) = answer_locally(frontend, era, &method, params.as_ref()) {
        return Work::Ready(Some(outcome));
    }
    let incoming = IncomingRequest { frontend, number, era, method: &method, params };
    let view = frontend.worker.view();
    let incoming = match tasks::answer(incoming, &view) {
        Ok(work) => return work,
        Err(incoming) => incoming,
    };
    match view.sole() {
        // A client does not wait for a server that is slow to start: it gets a list change later.
        Some(upstream) if upstream.is_unknown() && incoming.is_about_all() => incoming.route_merged(&view).await,
        Some(upstream) => incoming.forward_to_sole(upstream).await,
        None => incoming.route_merged(&view).await,
    }
}

/// The outcome of requests that no server is needed for.
fn answer_locally(frontend: &Frontend, era: Era, method: &str, params: Option<&Raw>) -> Option<Outcome> {
    if era == Era::Modern {
        return LEGACY_ONLY.contains(&method).then(|| RpcError::method_not_found(method).into());
    }
    match method {
        "initialize" => {
            if Members::of(params).ok().and_then(|params| params.text("protocolVersion")).is_none() {
                return Some(RpcError::invalid_params("initialize needs params with a protocolVersion").into());
            }
            lock(&frontend.state).initialize = params.map(Raw::detached);
            None
        }
        "ping" => Some(Outcome::Result(empty_object())),
        "server/discover" => Some(RpcError::method_not_found(method).into()),
        _ if frontend.has_initialized() => None,
        _ => Some(RpcError::new(codes::INVALID_REQUEST, "Invalid request: send initialize first").into()),
    }
}

/// A request of the client that is being routed.
pub struct IncomingRequest<'a> {
    pub frontend: &'a Arc<Frontend>,
    pub number: u64,
    pub era: Era,
    pub method: &'a str,
    pub params: Option<Raw>,
}

impl IncomingRequest<'_> {
    /// Whether it is a handshake, a list or a listen, which concern the server as a whole.
    fn is_about_all(&self) -> bool {
        matches!(self.method, "initialize" | "server/discover" | "subscriptions/listen")
            || ListKind::of_method(self.method).is_some()
    }

    /// With a single server, everything is forwarded to it, including unknown methods.
    async fn forward_to_sole(self, upstream: &Arc<Upstream>) -> Work {
        if upstream.is_out()
            && let Some(work) = self.answer_from_manifest(upstream).await
        {
            return work;
        }
        // Changes of a legacy server that this client has no process of are known from its manifest only.
        if self.method == "subscriptions/listen" && self.era == Era::Modern && upstream.is_legacy_only() {
            let view = self.frontend.worker.view();
            return Work::Listen(Listen::start(self.frontend, view, self.params).await);
        }
        let purpose = match self.method {
            "initialize" => Purpose::Initialize,
            "server/discover" => Purpose::Discover,
            "tools/list" if self.frontend.marks_tools(self.era, upstream) => Purpose::MarkTools,
            "subscriptions/listen" if self.era == Era::Modern => Purpose::Listen { acknowledged: false },
            _ => Purpose::Plain,
        };
        self.forward(upstream, purpose).await
    }

    async fn forward(self, upstream: &Arc<Upstream>, purpose: Purpose) -> Work {
        match tasks::task_request(&self, upstream) {
            TaskRequest::No => {}
            TaskRequest::Yes { wish, params } => return tasks::create(self, upstream, wish, params).await,
            TaskRequest::Rejected(error) => return Work::Ready(Some(error.into())),
        }
        let route = RouteKey::of(self.method, self.params.as_ref());
        let request = (self.method, self.params);
        match UpstreamCall::start(self.frontend, Some(self.number), upstream, self.era, request, purpose).await {
            Ok(call) => Work::Upstream(call.remembering(route)),
            Err(error) => Work::Ready(Some(error.into())),
        }
    }

    /// Answers handshakes and lists of an unavailable server from its manifest, so that clients can queue calls for it.
    async fn answer_from_manifest(&self, upstream: &Arc<Upstream>) -> Option<Work> {
        let result = match (self.method, ListKind::of_method(self.method)) {
            ("initialize", _) => {
                let result = initialize::initialize_from_manifest(upstream, self.params.as_ref())?;
                self.frontend.record_initialize(&result);
                result
            }
            ("server/discover", _) => initialize::discover_from_manifest(upstream)?,
            ("subscriptions/listen", _) if self.era == Era::Modern => {
                let view = self.frontend.worker.view();
                return Some(Work::Listen(Listen::start(self.frontend, view, self.params.clone()).await));
            }
            (_, Some(kind)) if upstream.greeting(self.era).is_some() && !has_cursor(self.params.as_ref()) => {
                let list = merge::from_manifest(upstream, self.era, kind);
                let marks = kind == ListKind::Tools && self.frontend.marks_tools(self.era, upstream);
                if marks { offer::in_tools(list) } else { list }
            }
            _ => return None,
        };
        Some(Work::Ready(Some(Outcome::Result(result))))
    }

    /// With several servers, or none yet, the worker answers as a server of its own and routes each request by name.
    async fn route_merged(self, view: &Arc<View>) -> Work {
        let listing = merge::Listing::of_method(self.method, self.era);
        match self.method {
            "initialize" => {
                let result = initialize::merged_initialize(view, self.params.as_ref());
                self.frontend.record_initialize(&result);
                Work::Ready(Some(Outcome::Result(result)))
            }
            "server/discover" => Work::Ready(Some(Outcome::Result(initialize::merged_discover(view)))),
            "logging/setLevel" => fanout::set_level(self.frontend, view, self.params),
            "subscriptions/listen" if self.era == Era::Modern => {
                Work::Listen(Listen::start(self.frontend, Arc::clone(view), self.params).await)
            }
            _ => match listing {
                Some(listing) => merge::list(self.frontend, view, self.era, listing, self.params),
                None => self.route_by_name(view).await,
            },
        }
    }

    async fn route_by_name(self, view: &Arc<View>) -> Work {
        let Some(name) = routed_name(self.method, self.params.as_ref()) else {
            let missing = self.missing_name();
            let is_unknown = missing.code == codes::METHOD_NOT_FOUND;
            let meant = || self.frontend.worker.meant(view, self.method, self.params.as_ref());
            return match is_unknown.then(meant).flatten() {
                Some(upstream) => self.forward(&upstream, Purpose::MayMakeTask).await,
                None => Work::Ready(Some(missing.into())),
            };
        };
        match self.frontend.worker.owner(view, &name) {
            Some(upstream) => self.forward(&upstream, Purpose::MayMakeTask).await,
            None => Work::Ready(Some(self.unknown_name(&name).into())),
        }
    }

    fn missing_name(&self) -> RpcError {
        let needs = match self.method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
            "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => "taskId",
            "completion/complete" => "ref",
            method => return RpcError::method_not_found(method),
        };
        RpcError::invalid_params(format!("{} needs params.{needs}", self.method))
    }

    fn unknown_name(&self, name: &NameKey) -> RpcError {
        match name {
            NameKey::Tool(name) => error::unknown_name("tool", name),
            NameKey::Prompt(name) => error::unknown_name("prompt", name),
            NameKey::Uri(uri) => error::unknown_resource(self.era == Era::Modern, uri),
            NameKey::Task(id) => error::unknown_name("task", id),
        }
    }
}

fn has_cursor(params: Option<&Raw>) -> bool {
    Members::of(params).is_ok_and(|params| params.contains("cursor"))
}
