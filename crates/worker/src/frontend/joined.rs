//! A request that was joined to an earlier equal call, which goes on under the id and progress token of the request.

use super::call::FrontendCall;
use super::{Frontend, InFlight};
use crate::worker::lock;
use std::sync::Arc;
use toolbus_mcp::{
    Id, Members, Message, NameKey, Notification, Outcome, Raw, Request, Response, meta, raw, routed_name,
};

/// How the messages of the earlier call are translated for the new request.
pub(super) struct Joined {
    /// The new request's progress token. Without one, progress is dropped.
    token: Option<Raw>,
    /// The id of the call on the bus.
    bus_id: Option<String>,
    /// The frontend that started the call, kept so that its session outlives the call, and the call's number there.
    origin: (Arc<Frontend>, Option<u64>),
    /// The disconnected callers, which may reconnect and resume their streams.
    earlier: Vec<EarlierCaller>,
}

/// A caller that started or joined the call and lost its connection. It may resume its stream, which ends on drop.
pub struct EarlierCaller {
    id: Id,
    record: Recorder,
}

/// Records a message of the call for later replay; `None` ends the stream.
pub type Recorder = Box<dyn Fn(Option<&Message>) + Send + Sync>;

impl EarlierCaller {
    pub fn new(id: Id, record: Recorder) -> Self {
        Self { id, record }
    }

    pub fn record(&self, message: &Message) {
        (self.record)(Some(message));
    }

    fn record_answer(&self, outcome: &Outcome) {
        self.record(&Response { id: Some(self.id.clone()), outcome: outcome.clone() }.into());
    }
}

impl Drop for EarlierCaller {
    fn drop(&mut self) {
        (self.record)(None);
    }
}

impl Joined {
    /// The message with the new request's progress token; `None` for progress that the new request did not ask for.
    pub fn translate(&self, message: Message) -> Option<Message> {
        match message {
            Message::Response(mut response) => {
                self.earlier.iter().for_each(|earlier| earlier.record_answer(&response.outcome));
                response.outcome = mark_joined(response.outcome, self.bus_id.as_deref());
                Some(response.into())
            }
            Message::Notification(note) if note.method == "notifications/progress" => {
                let token = self.token.clone()?;
                let mut params = Members::of(note.params.as_ref()).ok()?.clone();
                params.set("progressToken", token);
                let params = Some(params.into_raw());
                Some(Notification { method: note.method, params }.into())
            }
            message => Some(message),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let (frontend, Some(number)) = &self.origin {
            lock(&frontend.state).calls.remove(number);
        }
    }
}

impl FrontendCall {
    /// Hands the call over to this frontend and request. The earlier caller gets the response too.
    pub fn join(&mut self, frontend: &Arc<Frontend>, request: &Request, earlier: EarlierCaller) {
        let token = meta::get(request.params.as_ref(), meta::PROGRESS_TOKEN).map(|token| token.detached());
        let bus_id = self.bus_id();
        let number = self.number.and_then(|number| frontend.adopt_call(number, &self.frontend, request.id.clone()));
        let origin =
            (std::mem::replace(&mut self.frontend, Arc::clone(frontend)), std::mem::replace(&mut self.number, number));
        self.id = request.id.clone();
        let mut all = self.joined.as_mut().map(|joined| std::mem::take(&mut joined.earlier)).unwrap_or_default();
        all.push(earlier);
        self.joined = Some(Joined { token, bus_id, origin, earlier: all });
    }

    /// The id of the call on the bus; `None` if it was not sent to a host.
    pub fn bus_id(&self) -> Option<String> {
        let state = lock(&self.frontend.state);
        let sent = lock(&state.calls.get(&self.number?)?.sent);
        Some(sent.target.as_ref()?.bus_id.clone())
    }
}

impl Frontend {
    /// Whether the request is a tool call that may be joined to an earlier equal one.
    pub fn may_join(&self, request: &Request) -> bool {
        let name = routed_name(&request.method, request.params.as_ref());
        let Some(NameKey::Tool(tool)) = &name else { return false };
        let view = self.worker.view();
        let upstream = match view.sole() {
            Some(sole) => Some(Arc::clone(sole)),
            None => name.as_ref().and_then(|name| self.worker.owner(&view, name)),
        };
        upstream.is_some_and(|upstream| !upstream.manifest().alone.contain(Some(tool)))
    }

    /// Registers a call of another frontend here, so that this client can cancel it.
    fn adopt_call(&self, number: u64, origin: &Frontend, id: Id) -> Option<u64> {
        let flight = lock(&origin.state).calls.get(&number).map(|flight| InFlight {
            id,
            listens: flight.listens,
            sent: Arc::clone(&flight.sent),
            abort: flight.abort.clone(),
        })?;
        let mut state = lock(&self.state);
        state.last_call += 1;
        let number = state.last_call;
        state.calls.insert(number, flight);
        Some(number)
    }
}

/// Marks the outcome as that of an earlier call.
pub fn mark_joined(outcome: Outcome, call: Option<&str>) -> Outcome {
    let earlier = serde_json::Map::from_iter(call.map(|call| ("call".to_owned(), call.into())));
    meta::mark_joined(outcome, raw(&earlier))
}
