//! One client session: an MCP server towards the client, in the client's era. Requests become calls to the right
//! server, what happens meanwhile becomes notifications and requests to the client, and ids are kept apart per hop.

mod away;
mod call;
mod fanout;
mod greeting;
pub mod joined;
mod listen;
mod merge;
mod news;
mod notify;
mod questions;
mod route;
mod tasks;
mod upstream_call;

pub use call::FrontendCall;
pub use news::News;

use crate::error;
use crate::view::Upstream;
use crate::worker::{Worker, lock};
use call::Work;
use questions::Questions;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_client::BrokerError;
use toolbus_mcp::{ClientHello, Era, HostRequest, Id, ListKind, Members, Message, Raw, Request, Response, SessionKey};
use toolbus_protocol::Body;

/// How long the host's part of a session is worth closing.
const CLOSE_DEADLINE: Duration = Duration::from_secs(600);

pub struct Frontend {
    pub(crate) worker: Arc<Worker>,
    session: SessionKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The params of a legacy client's `initialize`.
    initialize: Option<Raw>,
    /// What `initialize` agreed on.
    version: Option<String>,
    /// The lists of which the client was promised to hear when they change.
    promised: Vec<ListKind>,
    calls: HashMap<u64, InFlight>,
    last_call: u64,
    questions: Questions,
    /// Hosts that may keep something for this session.
    touched: BTreeSet<String>,
    /// Where messages go that belong to no call of the client's, if anyone reads them.
    aside: Option<mpsc::Sender<Message>>,
}

/// A request of the client that is not answered yet. Clients may use an id twice, so it is not the key.
struct InFlight {
    id: Id,
    listens: bool,
    target: Option<Target>,
    abort: CancellationToken,
}

/// Where a call went, and under which id the host knows it.
#[derive(Clone)]
struct Target {
    upstream: Arc<Upstream>,
    bus_id: String,
    era: Era,
}

impl Frontend {
    pub fn new(worker: Arc<Worker>, session: SessionKey) -> Arc<Self> {
        Arc::new(Self { worker, session, state: Mutex::default() })
    }

    /// Starts on a request of the client. What comes of it is taken from the [`FrontCall`].
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
            state.calls.insert(number, InFlight { id, listens, target: None, abort: abort.clone() });
            number
        };
        // From here on the entry is removed by the call's drop.
        let mut call = FrontendCall::new(self, Some(number), request.id.clone(), Work::Ready(None), abort);
        let work = route::start(self, number, era, request).await;
        call.set_work(work);
        call
    }

    /// The client's answer to a request that was passed to it.
    pub async fn response(&self, response: Response) {
        let Some(question) = lock(&self.state).questions.take(response.id.as_ref()) else {
            tracing::debug!(id = ?response.id, "an answer to nothing that was asked");
            return;
        };
        self.send(&question.host.clone(), HostRequest::Answer(question.into_answer(&self.session, response.outcome)))
            .await;
    }

    /// The version that the client's `initialize` ended with.
    pub fn version(&self) -> Option<String> {
        lock(&self.state).version.clone()
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    pub fn calls_under_way(&self) -> usize {
        lock(&self.state).calls.len()
    }

    /// How many of them go on until the client ends them.
    pub fn listenings(&self) -> usize {
        lock(&self.state).calls.values().filter(|flight| flight.listens).count()
    }

    /// The era of what doesn't tell its own: a client that said `initialize` speaks the legacy one.
    pub fn era(&self) -> Era {
        if self.has_initialized() { Era::Legacy } else { Era::Modern }
    }

    /// The client is gone: tells every host that may keep something for it.
    pub async fn close(&self) {
        let touched = std::mem::take(&mut lock(&self.state).touched);
        for host in touched {
            let close = body(HostRequest::Close { session: self.session.clone() });
            if let Err(error) = self.worker.bus.deliver(&host, close, CLOSE_DEADLINE).await {
                tracing::debug!(%host, %error, "the host is not told that the client is gone");
            }
        }
    }

    /// What the host is told about the client, so that it can speak for it.
    fn hello(&self, era: Era) -> ClientHello {
        match era {
            Era::Modern => ClientHello::modern(),
            Era::Legacy => ClientHello { era, initialize: lock(&self.state).initialize.clone() },
        }
    }

    fn has_initialized(&self) -> bool {
        lock(&self.state).initialize.is_some()
    }

    /// Takes note of what the client was told in answer to its `initialize`.
    fn greeted(&self, result: &Raw) {
        let Ok(result) = Members::of(Some(result)) else { return };
        let capabilities = Members::of(result.get("capabilities")).unwrap_or_default();
        let promised = ListKind::ALL.into_iter().filter(|kind| {
            let Ok(capability) = Members::of(capabilities.get(kind.capability())) else { return false };
            capability.get("listChanged").is_some_and(|flag| flag.get() == "true")
        });
        let mut state = lock(&self.state);
        state.promised = promised.collect();
        state.version = result.text("protocolVersion");
    }

    /// Tells the client something outside of its calls.
    fn tell_aside(&self, message: Message) {
        let aside = lock(&self.state).aside.clone();
        if aside.is_none_or(|aside| aside.try_send(message).is_err()) {
            tracing::debug!("a message for the client has no reader");
        }
    }

    fn touch(&self, host: &str) {
        let mut state = lock(&self.state);
        if !state.touched.contains(host) {
            state.touched.insert(host.to_owned());
        }
    }

    /// Sends what is not answered. A bus that refuses it is not the client's to repair.
    async fn send(&self, host: &str, request: HostRequest) {
        let outcome = self.worker.bus.send(host, body(request), CLOSE_DEADLINE).await;
        if let Err(error) = outcome
            && !matches!(error, BrokerError::Closed)
        {
            tracing::warn!(%host, %error, "a message to the host was refused");
        }
    }
}

fn body(request: HostRequest) -> Body {
    Body::from_trusted(request.into_json().into())
}
