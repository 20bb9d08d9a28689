//! The open calls of a connection: request ids and progress tokens, and the routing of the server's messages to calls.

use crate::call::CallEvent;
use crate::error::ServerError;
use crate::queue::{CallQueue, PROGRESS};
use crate::secrets::Redactor;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_mcp::{Era, Id, Members, Outcome, Raw, meta, raw};

/// How many abandoned calls, and progress tokens of ended calls, are remembered to recognise late messages.
const MAX_REMEMBERED: usize = 1_024;
const LISTEN: &str = "subscriptions/listen";
const CANCELLED: &str = "notifications/cancelled";

pub(crate) struct Calls {
    /// Errors quote servers, and servers may quote the secrets that they were given.
    redactor: Redactor,
    table: Mutex<Table>,
}

struct Table {
    era: Era,
    map_tokens: bool,
    last_id: u64,
    open: HashMap<u64, Open>,
    /// Keyed by the JSON text of the token that the server was given.
    tokens: HashMap<String, Token>,
    /// Tokens in `tokens` whose call has ended, oldest first. A task may report progress under its call's token long
    /// after.
    old_tokens: VecDeque<String>,
    abandoned: VecDeque<u64>,
    closed: Option<ServerError>,
}

struct Open {
    queue: Arc<CallQueue>,
    method: Box<str>,
    token: Option<String>,
}

struct Token {
    call: u64,
    /// The caller's own token, if the server was given another.
    original: Option<Raw>,
}

pub(crate) struct NewCall {
    pub number: u64,
    pub params: Option<Raw>,
    pub queue: Arc<CallQueue>,
}

/// Where a message of the server came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The stdout pipe, which carries everything.
    Pipe,
    /// The response stream of a call.
    Call(u64),
    /// A stream that belongs to no call.
    Outside,
}

impl Origin {
    pub fn call(self) -> Option<u64> {
        match self {
            Self::Call(number) => Some(number),
            Self::Pipe | Self::Outside => None,
        }
    }
}

/// The recipient of a message of the server.
pub(crate) enum Destination {
    Call(u64, Arc<CallQueue>),
    /// The owner of the connection.
    Owner,
}

pub(crate) enum Answered {
    Call,
    /// The call was abandoned: its caller no longer waits for this response.
    Abandoned,
    /// There is no such call, or it was answered before.
    Unknown,
}

impl Calls {
    pub fn new(era: Era, map_tokens: bool, redactor: Redactor) -> Self {
        let table = Table {
            era,
            map_tokens,
            last_id: 0,
            open: HashMap::new(),
            tokens: HashMap::new(),
            old_tokens: VecDeque::new(),
            abandoned: VecDeque::new(),
            closed: None,
        };
        Self { redactor, table: Mutex::new(table) }
    }

    /// Sets the era that the probe found, and whether clients will share the connection.
    pub fn set_use(&self, era: Era, map_tokens: bool) {
        let mut table = self.lock();
        (table.era, table.map_tokens) = (era, map_tokens);
    }

    pub fn open(&self, server: &str, method: &str, params: Option<Raw>) -> Result<NewCall, ServerError> {
        let token = meta::get(params.as_ref(), meta::PROGRESS_TOKEN);
        let mut table = self.lock();
        if let Some(error) = &table.closed {
            return Err(error.clone());
        }
        table.last_id += 1;
        let number = table.last_id;
        let (token, params) = match token {
            Some(token) => {
                let (token, params) = self.register_token(&mut table, number, token, params).map_err(|error| {
                    ServerError::BadRequest { server: server.to_owned(), reason: error.to_string() }
                })?;
                (Some(token), params)
            }
            None => (None, params),
        };
        let queue = Arc::new(CallQueue::default());
        table.open.insert(number, Open { queue: queue.clone(), method: method.into(), token });
        Ok(NewCall { number, params, queue })
    }

    fn register_token(
        &self,
        table: &mut Table,
        call: u64,
        token: Raw,
        params: Option<Raw>,
    ) -> Result<(String, Option<Raw>), toolbus_mcp::MembersError> {
        let text = token.get().to_owned();
        let taken = table.tokens.get(&text).is_some_and(|other| table.open.contains_key(&other.call));
        if !table.map_tokens && !taken {
            table.old_tokens.retain(|old| *old != text);
            table.tokens.insert(text.clone(), Token { call, original: None });
            return Ok((text, params));
        }
        // A prefix that no client is expected to use, so that it can't collide with a token that is passed on
        // unchanged.
        let ours = raw(&format!("toolbus-{call}"));
        let params = meta::set(params.as_ref(), meta::PROGRESS_TOKEN, ours.clone())?;
        table.tokens.insert(ours.get().to_owned(), Token { call, original: Some(token.detached()) });
        Ok((ours.get().to_owned(), Some(params)))
    }

    /// Finds the recipient of a notification. A mapped progress token is replaced by the caller's own.
    pub fn route_notification(&self, method: &str, params: &mut Option<Raw>, origin: Origin) -> Destination {
        let table = self.lock();
        if method == PROGRESS
            && let Some(token) = progress_token(params).and_then(|token| table.tokens.get(&token))
        {
            if let Some(original) = &token.original {
                set_token(params, original);
            }
            return table.destination(Some(token.call));
        }
        // If several clients share the connection, progress under an unknown token must not reach an unrelated call.
        if method == PROGRESS && table.map_tokens {
            return Destination::Owner;
        }
        if table.era == Era::Modern
            && let Some(listen) = subscription(params)
        {
            return table.destination(Some(listen));
        }
        table.destination_by_origin(origin)
    }

    /// Finds the recipient of a request of the server.
    pub fn route_request(&self, origin: Origin) -> Destination {
        let table = self.lock();
        table.destination_by_origin(origin)
    }

    /// The request that a modern server ends with `notifications/cancelled`. Legacy servers use it to cancel their own
    /// requests, not the client's.
    pub fn ended_by_server(&self, method: &str, params: &Option<Raw>) -> Option<(u64, String)> {
        if method != CANCELLED || self.lock().era == Era::Legacy {
            return None;
        }
        let params = Members::of(params.as_ref()).ok()?;
        let number = params.get("requestId")?.get().parse().ok()?;
        self.is_open(number).then(|| (number, params.text("reason").unwrap_or_default()))
    }

    pub fn is_open(&self, number: u64) -> bool {
        self.lock().open.contains_key(&number)
    }

    pub fn finish(&self, number: u64, outcome: Result<Outcome, ServerError>) -> Answered {
        let mut table = self.lock();
        let Some(open) = table.open.remove(&number) else {
            return match table.abandoned.iter().position(|abandoned| *abandoned == number) {
                Some(at) => {
                    table.abandoned.remove(at);
                    Answered::Abandoned
                }
                None => Answered::Unknown,
            };
        };
        table.retire_token(open.token);
        drop(table);
        let outcome = outcome.map_err(|error| error.redacted(&self.redactor));
        open.queue.end(CallEvent::Done(outcome));
        Answered::Call
    }

    /// Removes a call whose caller is gone. Returns its method if it was still open.
    pub fn abandon(&self, number: u64) -> Option<Box<str>> {
        let mut table = self.lock();
        let open = table.open.remove(&number)?;
        table.retire_token(open.token);
        if table.abandoned.len() == MAX_REMEMBERED {
            table.abandoned.pop_front();
        }
        table.abandoned.push_back(number);
        Some(open.method)
    }

    pub fn method_of(&self, number: u64) -> Option<Box<str>> {
        self.lock().open.get(&number).map(|open| open.method.clone())
    }

    /// Rejects new calls; open calls continue. Returns false if the connection was closed before.
    pub fn reject_new(&self, error: &ServerError) -> bool {
        let mut table = self.lock();
        let is_first = table.closed.is_none();
        table.closed.get_or_insert_with(|| error.clone().redacted(&self.redactor));
        is_first
    }

    /// Rejects new calls and ends every open one. Returns false if the connection was closed before.
    pub fn close(&self, error: &ServerError) -> bool {
        let error = &error.clone().redacted(&self.redactor);
        let mut table = self.lock();
        let is_first = table.closed.is_none();
        table.closed.get_or_insert_with(|| error.clone());
        let open = std::mem::take(&mut table.open);
        table.tokens.clear();
        drop(table);
        for (_, open) in open {
            open.queue.end(CallEvent::Done(Err(error.clone())));
        }
        is_first
    }

    pub fn closed(&self) -> Option<ServerError> {
        self.lock().closed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn destination(&self, call: Option<u64>) -> Destination {
        match call.and_then(|call| Some((call, self.open.get(&call)?))) {
            Some((call, open)) => Destination::Call(call, open.queue.clone()),
            None => Destination::Owner,
        }
    }

    /// Routing by origin alone.
    fn destination_by_origin(&self, origin: Origin) -> Destination {
        match origin {
            Origin::Call(number) => self.destination(Some(number)),
            Origin::Pipe => self.destination(self.only_call()),
            Origin::Outside => Destination::Owner,
        }
    }

    /// The only running call, if there is exactly one. Listeners don't count: their messages carry a subscription id.
    fn only_call(&self) -> Option<u64> {
        let mut running = self.open.iter().filter(|(_, open)| &*open.method != LISTEN).map(|(number, _)| *number);
        let first = running.next()?;
        running.next().is_none().then_some(first)
    }

    fn retire_token(&mut self, token: Option<String>) {
        let Some(token) = token else { return };
        if self.old_tokens.len() == MAX_REMEMBERED
            && let Some(oldest) = self.old_tokens.pop_front()
        {
            self.tokens.remove(&oldest);
        }
        self.old_tokens.push_back(token);
    }
}

/// As JSON text: `7` and `"7"` are different tokens.
fn progress_token(params: &Option<Raw>) -> Option<String> {
    let params = Members::of(params.as_ref()).ok()?;
    params.get(meta::PROGRESS_TOKEN).map(|token| token.get().to_owned())
}

fn set_token(params: &mut Option<Raw>, token: &Raw) {
    let edited = Members::of(params.as_ref()).map(|members| {
        let mut members = members.clone();
        members.set(meta::PROGRESS_TOKEN, token.clone());
        members.into_raw()
    });
    if let Ok(edited) = edited {
        *params = Some(edited);
    }
}

fn subscription(params: &Option<Raw>) -> Option<u64> {
    // Searches the text first: most notifications have no subscription id, and parsing costs more.
    let text = params.as_ref()?.get();
    text.contains(meta::SUBSCRIPTION_ID).then_some(())?;
    let id = meta::get(params.as_ref(), meta::SUBSCRIPTION_ID)?;
    Id::from_raw(&id)?.as_u64()
}
