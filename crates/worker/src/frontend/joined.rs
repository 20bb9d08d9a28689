//! A call that was joined to an earlier one of the same client: it goes on under the new request's id and progress token.

use super::call::FrontendCall;
use super::{Frontend, InFlight};
use crate::worker::lock;
use std::sync::Arc;
use toolbus_mcp::{
    Id, Members, Message, NameKey, Notification, Outcome, Raw, Request, Response, meta, raw, routed_name,
};

/// What has to be changed in the messages of the earlier call.
pub(super) struct Joined {
    /// The new request's, if it wants to hear of progress.
    token: Option<Raw>,
    /// Under which id the host knows the call.
    bus_id: Option<String>,
    /// The front that began the call keeps its session as long as the call lasts.
    began: (Arc<Frontend>, Option<u64>),
    /// Those who called before, should they come back.
    earlier: Vec<Earlier>,
}

/// Somebody who made the call, lost the connection, and may come back for the answer. Dropping it ends what is kept there.
pub struct Earlier {
    id: Id,
    keep: Keep,
}

/// Keeps a message of a call; nothing is its end.
pub type Keep = Box<dyn Fn(Option<&Message>) + Send + Sync>;

impl Earlier {
    pub fn new(id: Id, keep: Keep) -> Self {
        Self { id, keep }
    }

    pub fn keep(&self, message: &Message) {
        (self.keep)(Some(message));
    }

    fn answered(&self, outcome: &Outcome) {
        self.keep(&Response { id: Some(self.id.clone()), outcome: outcome.clone() }.into());
    }
}

impl Drop for Earlier {
    fn drop(&mut self) {
        (self.keep)(None);
    }
}

impl Joined {
    /// The message in the words of the new request; nothing if it does not concern it.
    pub fn translate(&self, message: Message) -> Option<Message> {
        match message {
            Message::Response(mut response) => {
                self.earlier.iter().for_each(|earlier| earlier.answered(&response.outcome));
                response.outcome = mark(response.outcome, self.bus_id.as_deref());
                Some(response.into())
            }
            Message::Notification(note) if note.method == "notifications/progress" => {
                let token = self.token.clone()?;
                let mut params = Members::of(note.params.as_deref()).ok()?;
                params.set("progressToken", token);
                let params = Some(params.to_raw());
                Some(Notification { method: note.method, params }.into())
            }
            message => Some(message),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let (frontend, Some(number)) = &self.began {
            lock(&frontend.state).calls.remove(number);
        }
    }
}

impl FrontendCall {
    /// From now on the call belongs to this front and this request. Who made it before gets its answer too.
    pub fn join(&mut self, frontend: &Arc<Frontend>, request: &Request, earlier: Earlier) {
        let token = meta::get(request.params.as_deref(), meta::PROGRESS_TOKEN);
        let bus_id = self.bus_id();
        let number = self.number.and_then(|number| frontend.enter(number, &self.frontend, request.id.clone()));
        let began =
            (std::mem::replace(&mut self.frontend, Arc::clone(frontend)), std::mem::replace(&mut self.number, number));
        self.id = request.id.clone();
        let mut all = self.joined.as_mut().map(|joined| std::mem::take(&mut joined.earlier)).unwrap_or_default();
        all.push(earlier);
        self.joined = Some(Joined { token, bus_id, began, earlier: all });
    }

    /// Under which id the host knows it.
    pub fn bus_id(&self) -> Option<String> {
        let state = lock(&self.frontend.state);
        Some(state.calls.get(&self.number?)?.target.as_ref()?.bus_id.clone())
    }
}

impl Frontend {
    /// Whether the request is a call of a tool that may be joined to an earlier one.
    pub fn may_join(&self, request: &Request) -> bool {
        let name = routed_name(&request.method, request.params.as_deref());
        let Some(NameKey::Tool(tool)) = &name else { return false };
        let view = self.worker.view();
        let upstream = match view.sole() {
            Some(sole) => Some(Arc::clone(sole)),
            None => name.as_ref().and_then(|name| self.worker.owner(&view, name)),
        };
        upstream.is_some_and(|upstream| !upstream.manifest().alone.contain(Some(tool)))
    }

    /// Enters a call of another front among its own, so that its client can call it off.
    fn enter(&self, number: u64, began: &Frontend, id: Id) -> Option<u64> {
        let flight = lock(&began.state).calls.get(&number).map(|flight| InFlight {
            id,
            listens: flight.listens,
            target: flight.target.clone(),
            abort: flight.abort.clone(),
        })?;
        let mut state = lock(&self.state);
        state.last_call += 1;
        let number = state.last_call;
        state.calls.insert(number, flight);
        Some(number)
    }
}

/// The outcome with a mark for whoever wants to know that it is an earlier call's.
pub fn mark(outcome: Outcome, call: Option<&str>) -> Outcome {
    let earlier = serde_json::Map::from_iter(call.map(|call| ("call".to_owned(), call.into())));
    meta::mark_joined(outcome, raw(&earlier))
}
