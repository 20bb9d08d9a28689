//! The open calls of a connection: ids and progress tokens of our own, and to which call a message of the server
//! belongs.

use crate::call::CallEvent;
use crate::error::ServerError;
use crate::queue::{CallQueue, PROGRESS};
use crate::secrets::Redactor;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_mcp::{Era, Id, Members, Outcome, Raw, meta, raw};

/// Calls that were given up, and tokens whose call is over, are remembered this long, to know their echo.
const MAX_REMEMBERED: usize = 1_024;
const LISTEN: &str = "subscriptions/listen";
const CANCELLED: &str = "notifications/cancelled";

pub(crate) struct Calls {
    era: Era,
    map_tokens: bool,
    /// Errors quote servers, and servers quote what they were given.
    redactor: Redactor,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last_id: u64,
    open: HashMap<u64, Open>,
    /// By the text of the token that the server was given.
    tokens: HashMap<String, Token>,
    /// Tokens in `tokens` whose call is over, oldest first. A task may report under its call's token long after.
    old_tokens: VecDeque<String>,
    given_up: VecDeque<u64>,
    closed: Option<ServerError>,
}

struct Open {
    queue: Arc<CallQueue>,
    method: Box<str>,
    token: Option<String>,
}

struct Token {
    call: u64,
    /// What the caller calls it, if the server was given another.
    original: Option<Raw>,
}

pub(crate) struct NewCall {
    pub number: u64,
    pub params: Option<Raw>,
    pub queue: Arc<CallQueue>,
}

/// On which way a message of the server came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The one pipe that everything comes through.
    Pipe,
    /// The response stream of a call.
    Call(u64),
    /// A stream that belongs to no call.
    Outside,
}

impl Way {
    pub fn call(self) -> Option<u64> {
        match self {
            Self::Call(number) => Some(number),
            Self::Pipe | Self::Outside => None,
        }
    }
}

/// Where a message of the server goes.
pub(crate) enum Place {
    Call(u64, Arc<CallQueue>),
    /// To whoever owns the connection.
    Owner,
}

pub(crate) enum Answered {
    Call,
    /// The call was given up; this is the answer that nobody waits for.
    Nobody,
    /// There is no such call, or it was answered before.
    Unknown,
}

impl Calls {
    pub fn new(era: Era, map_tokens: bool, redactor: Redactor) -> Self {
        Self { era, map_tokens, redactor, table: Mutex::default() }
    }

    pub fn open(&self, server: &str, method: &str, params: Option<Raw>) -> Result<NewCall, ServerError> {
        let token = meta::get(params.as_deref(), meta::PROGRESS_TOKEN);
        let mut table = self.lock();
        if let Some(error) = &table.closed {
            return Err(error.clone());
        }
        table.last_id += 1;
        let number = table.last_id;
        let (token, params) = match token {
            Some(token) => {
                let (token, params) = self.give_token(&mut table, number, token, params).map_err(|error| {
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

    fn give_token(
        &self,
        table: &mut Table,
        call: u64,
        token: Raw,
        params: Option<Raw>,
    ) -> Result<(String, Option<Raw>), toolbus_mcp::MembersError> {
        let text = token.get().to_owned();
        let taken = table.tokens.get(&text).is_some_and(|other| table.open.contains_key(&other.call));
        if !self.map_tokens && !taken {
            table.old_tokens.retain(|old| *old != text);
            table.tokens.insert(text.clone(), Token { call, original: None });
            return Ok((text, params));
        }
        // A word no client would choose, so that it can't meet a token that is passed on as it is.
        let ours = raw(&format!("toolbus-{call}"));
        let params = meta::set(params.as_deref(), meta::PROGRESS_TOKEN, ours.clone())?;
        table.tokens.insert(ours.get().to_owned(), Token { call, original: Some(token) });
        Ok((ours.get().to_owned(), Some(params)))
    }

    /// To whom a notification belongs. A progress token of ours is put back to the caller's own.
    pub fn place_of_notification(&self, method: &str, params: &mut Option<Raw>, way: Way) -> Place {
        let table = self.lock();
        if method == PROGRESS
            && let Some(token) = progress_token(params).and_then(|token| table.tokens.get(&token))
        {
            if let Some(original) = &token.original {
                set_token(params, original);
            }
            return table.place(Some(token.call));
        }
        // Where several clients share the connection, progress under a token that nobody has is not the next best's.
        if method == PROGRESS && self.map_tokens {
            return Place::Owner;
        }
        if self.era == Era::Modern
            && let Some(listen) = subscription(params)
        {
            return table.place(Some(listen));
        }
        table.place_by(way)
    }

    /// To whom a request of the server belongs.
    pub fn place_of_request(&self, way: Way) -> Place {
        let table = self.lock();
        table.place_by(way)
    }

    /// Which of our requests a modern server ends by `notifications/cancelled`. Legacy servers take back their own
    /// requests that way, not ours.
    pub fn ended_by_server(&self, method: &str, params: &Option<Raw>) -> Option<(u64, String)> {
        if self.era == Era::Legacy || method != CANCELLED {
            return None;
        }
        let params = Members::of(params.as_deref()).ok()?;
        let number = params.get("requestId")?.get().parse().ok()?;
        self.is_open(number).then(|| (number, params.text("reason").unwrap_or_default()))
    }

    pub fn is_open(&self, number: u64) -> bool {
        self.lock().open.contains_key(&number)
    }

    pub fn finish(&self, number: u64, outcome: Result<Outcome, ServerError>) -> Answered {
        let mut table = self.lock();
        let Some(open) = table.open.remove(&number) else {
            return match table.given_up.iter().position(|given_up| *given_up == number) {
                Some(at) => {
                    table.given_up.remove(at);
                    Answered::Nobody
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

    /// The caller is gone. Returns the method of the call, if it was open until now.
    pub fn give_up(&self, number: u64) -> Option<Box<str>> {
        let mut table = self.lock();
        let open = table.open.remove(&number)?;
        table.retire_token(open.token);
        if table.given_up.len() == MAX_REMEMBERED {
            table.given_up.pop_front();
        }
        table.given_up.push_back(number);
        Some(open.method)
    }

    pub fn method_of(&self, number: u64) -> Option<Box<str>> {
        self.lock().open.get(&number).map(|open| open.method.clone())
    }

    /// Ends every open call and refuses new ones. False if that has happened before.
    /// No call begins any more; those that are open end in their own way.
    pub fn refuse_new(&self, error: &ServerError) -> bool {
        let mut table = self.lock();
        let is_first = table.closed.is_none();
        table.closed.get_or_insert_with(|| error.clone().redacted(&self.redactor));
        is_first
    }

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
    fn place(&self, call: Option<u64>) -> Place {
        match call.and_then(|call| Some((call, self.open.get(&call)?))) {
            Some((call, open)) => Place::Call(call, open.queue.clone()),
            None => Place::Owner,
        }
    }

    /// Where it belongs by the way it came alone.
    fn place_by(&self, way: Way) -> Place {
        match way {
            Way::Call(number) => self.place(Some(number)),
            Way::Pipe => self.place(self.only_one()),
            Way::Outside => Place::Owner,
        }
    }

    /// The one call that can be meant where nothing says which. A listener is not meant: its messages are marked.
    fn only_one(&self) -> Option<u64> {
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

/// As JSON text: `7` and `"7"` are two tokens.
fn progress_token(params: &Option<Raw>) -> Option<String> {
    let params = Members::of(params.as_deref()).ok()?;
    params.get(meta::PROGRESS_TOKEN).map(|token| token.get().to_owned())
}

fn set_token(params: &mut Option<Raw>, token: &Raw) {
    let edited = Members::of(params.as_deref()).map(|mut members| {
        members.set(meta::PROGRESS_TOKEN, token.clone());
        members.to_raw()
    });
    if let Ok(edited) = edited {
        *params = Some(edited);
    }
}

fn subscription(params: &Option<Raw>) -> Option<u64> {
    // Looked for as text first: most notifications have none, and taking them apart costs more.
    let text = params.as_ref()?.get();
    text.contains(meta::SUBSCRIPTION_ID).then_some(())?;
    let id = meta::get(params.as_deref(), meta::SUBSCRIPTION_ID)?;
    Id::from_raw(&id)?.as_u64()
}
