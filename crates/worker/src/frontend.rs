//! The MCP session of one client: an MCP server towards the client, in the client's era. Requests become calls to the
//! right server, events of a call become notifications and requests to the client, and each hop has its own ids.

mod away;
mod call;
pub mod call_state;
mod calls;
mod client_requests;
mod earlier;
mod failover;
mod fanout;
mod initialize;
pub mod joined;
mod listen;
mod member;
mod merge;
mod news;
mod notify;
pub mod planted;
mod pooled;
mod route;
mod tasks;
mod upstream_call;

pub use call::FrontendCall;
pub use news::News;

use crate::envelope::Envelope;
use crate::error;
use crate::view::Upstream;
use crate::worker::{Worker, lock};
use call::Work;
use client_requests::PendingRequests;
use hashbrown::HashMap;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_client::BrokerError;
use toolbus_mcp::{
    BATCH_VERSION, ClientHello, Era, HostRequest, Id, ListKind, Members, Message, Raw, Request, Response, SessionKey,
    raw,
};
use toolbus_protocol::Body;

/// Deadline of one-way messages, such as the close of a session, that are queued for an absent host.
const CLOSE_DEADLINE: Duration = Duration::from_secs(600);
/// The hosts of pools that keep the session's state, in the record of a session.
const POOLS: &str = "pools";

/// The MCP session of one client.
pub struct Frontend {
    pub(crate) worker: Arc<Worker>,
    session: SessionKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The params of a legacy client's `initialize`.
    initialize: Option<Raw>,
    /// The protocol version that `initialize` negotiated.
    version: Option<String>,
    /// The lists for which the `initialize` result declared `listChanged`.
    list_changed: Vec<ListKind>,
    /// What the modern client's last request said about it, for its notifications.
    description: Option<Description>,
    calls: HashMap<u64, InFlight>,
    last_call: u64,
    pending_requests: PendingRequests,
    /// Hosts that may hold state for this session.
    contacted: BTreeSet<String>,
    /// Sink for messages that belong to none of the client's calls, if the session has a reader for them.
    out_of_band: Option<mpsc::Sender<Message>>,
}

/// Capabilities and name of a modern client.
struct Description {
    capabilities: Raw,
    client_info: Option<Raw>,
}

/// An unanswered request of the client. Keyed by a number of ours, because clients may reuse an id.
struct InFlight {
    id: Id,
    listens: bool,
    sent: Arc<Mutex<Sent>>,
    abort: CancellationToken,
}

/// Where a call was sent. Shared with the client that has joined it.
#[derive(Default)]
struct Sent {
    target: Option<Target>,
    /// The client cancelled the call: it must not move to another host.
    is_cancelled: bool,
}

/// The upstream of a call, and the id of the call on the bus.
#[derive(Clone)]
struct Target {
    upstream: Arc<Upstream>,
    bus_id: String,
    era: Era,
}

impl Frontend {
    /// A session under the given key, which hosts use to tell sessions apart.
    pub fn new(worker: Arc<Worker>, session: SessionKey) -> Arc<Self> {
        Arc::new(Self { worker, session, state: Mutex::default() })
    }

    /// Starts a request of the client. Its messages are read from the [`FrontendCall`].
    pub async fn request(self: &Arc<Self>, era: Era, request: Request) -> FrontendCall {
        let abort = CancellationToken::new();
        let number = {
            let mut state = lock(&self.state);
            if state.calls.len() >= self.worker.options.max_calls {
                drop(state);
                let outcome = error::too_many_calls(self.worker.options.max_calls).into();
                return FrontendCall::new(self, None, request.id, Work::Ready(Some(outcome)), abort);
            }
            state.last_call += 1;
            let number = state.last_call;
            let (id, listens) = (request.id.clone(), request.method == "subscriptions/listen");
            state.calls.insert(number, InFlight { id, listens, sent: Arc::default(), abort: abort.clone() });
            number
        };
        // From here on, dropping the call removes the entry.
        let mut call = FrontendCall::new(self, Some(number), request.id.clone(), Work::Ready(None), abort);
        let work = route::start(self, number, era, request).await;
        call.set_work(work);
        call
    }

    /// Passes on the client's response to a pending client request.
    pub async fn response(&self, response: Response) {
        let Some(pending) = lock(&self.state).pending_requests.take(response.id.as_ref()) else {
            tracing::debug!(id = ?response.id, "response to an unknown client request");
            return;
        };
        self.send(&pending.host.clone(), HostRequest::Answer(pending.into_answer(&self.session, response.outcome)))
            .await;
    }

    /// The protocol version that the client's `initialize` negotiated.
    pub fn version(&self) -> Option<String> {
        lock(&self.state).version.clone()
    }

    /// Whether the client may send JSON-RPC batches.
    pub fn accepts_batches(&self) -> bool {
        lock(&self.state).version.as_deref() == Some(BATCH_VERSION)
    }

    /// The session key.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The number of unanswered requests of the client.
    pub fn calls_under_way(&self) -> usize {
        lock(&self.state).calls.len()
    }

    /// The number of running `subscriptions/listen` requests.
    pub fn listenings(&self) -> usize {
        lock(&self.state).calls.values().filter(|flight| flight.listens).count()
    }

    /// The era of messages that do not declare one: legacy once the client has sent `initialize`.
    pub fn era(&self) -> Era {
        if self.has_initialized() { Era::Legacy } else { Era::Modern }
    }

    /// Closes the session after the client disconnected: notifies every host that may hold state for it.
    pub async fn close(&self) {
        let contacted = std::mem::take(&mut lock(&self.state).contacted);
        self.worker.pools.forget(&self.session);
        for host in contacted {
            let close = body(HostRequest::Close { session: self.session.clone() });
            if let Err(error) = self.worker.bus.deliver(&host, close, CLOSE_DEADLINE).await {
                tracing::debug!(%host, %error, "closing the session at the host failed");
            }
        }
    }

    /// The description of the client that the host needs to act on its behalf.
    fn hello(&self, era: Era) -> ClientHello {
        match era {
            Era::Modern => ClientHello::modern(),
            Era::Legacy => ClientHello { era, initialize: lock(&self.state).initialize.clone() },
        }
    }

    /// Remembers what a request of the modern client says about it.
    pub(crate) fn describe_client(&self, envelope: &Envelope) {
        let mut state = lock(&self.state);
        let text = |raw: &Option<Raw>| raw.as_ref().map(|raw| raw.get().to_owned());
        let is_known = state.description.as_ref().is_some_and(|known| {
            known.capabilities.get() == envelope.capabilities.get()
                && text(&known.client_info) == text(&envelope.client_info)
        });
        if !is_known {
            let capabilities = envelope.capabilities.detached();
            let client_info = envelope.client_info.as_ref().map(Raw::detached);
            state.description = Some(Description { capabilities, client_info });
        }
    }

    fn has_initialized(&self) -> bool {
        lock(&self.state).initialize.is_some()
    }

    /// What a legacy session needs to continue in another process: the params of `initialize`, and the parts of its result
    /// that [`Frontend::restore`] reads.
    pub(crate) fn negotiated(&self) -> Option<(Raw, Raw)> {
        let state = lock(&self.state);
        let capabilities = state.list_changed.iter().map(|kind| (kind.capability(), json!({"listChanged": true})));
        let capabilities: BTreeMap<_, _> = capabilities.collect();
        let pools: BTreeMap<_, _> = self.worker.pools.pins_of(&self.session).into_iter().collect();
        let result = json!({"protocolVersion": state.version.as_ref()?, "capabilities": capabilities, POOLS: pools});
        Some((state.initialize.clone()?, raw(&result)))
    }

    /// Continues a session of an earlier process.
    pub(crate) fn restore(&self, initialize: Raw, negotiated: &Raw) {
        lock(&self.state).initialize = Some(initialize);
        self.record_initialize(negotiated);
        let Ok(members) = negotiated.members() else { return };
        let pools =
            members.get(POOLS).and_then(|pools| serde_json::from_str::<BTreeMap<String, String>>(pools.get()).ok());
        for (pool, host) in pools.unwrap_or_default() {
            self.worker.pools.pin(&self.session, &pool, &host);
        }
    }

    /// Records the result of the client's `initialize`.
    fn record_initialize(&self, result: &Raw) {
        let Ok(result) = Members::of(Some(result)) else { return };
        let capabilities = Members::of(result.get("capabilities")).unwrap_or_default();
        let list_changed = ListKind::ALL.into_iter().filter(|kind| {
            let Ok(capability) = Members::of(capabilities.get(kind.capability())) else { return false };
            capability.get("listChanged").is_some_and(|flag| flag.get() == "true")
        });
        let mut state = lock(&self.state);
        state.list_changed = list_changed.collect();
        state.version = result.text("protocolVersion");
    }

    /// Sends the client a message outside of its calls.
    fn send_out_of_band(&self, message: Message) {
        let out_of_band = lock(&self.state).out_of_band.clone();
        if out_of_band.is_none_or(|out_of_band| out_of_band.try_send(message).is_err()) {
            tracing::debug!("a message for the client was dropped: no reader, or its queue is full");
        }
    }

    fn mark_contacted(&self, host: &str) {
        let mut state = lock(&self.state);
        if !state.contacted.contains(host) {
            state.contacted.insert(host.to_owned());
        }
    }

    /// Sends a one-way message. Errors are only logged: the client can do nothing about them.
    async fn send(&self, host: &str, request: HostRequest) {
        let outcome = self.worker.bus.send(host, body(request), CLOSE_DEADLINE).await;
        if let Err(error) = outcome
            && !matches!(error, BrokerError::Closed)
        {
            tracing::warn!(%host, %error, "a message to the host was rejected");
        }
    }
}

fn body(request: HostRequest) -> Body {
    Body::from_trusted(request.to_json().into_bytes())
}
