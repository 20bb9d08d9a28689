//! A request on the doorstep of its server: it is written down before it goes in, goes in once more only where nobody took
//! it or it may run twice, and stays out while the server is known to fail.

use super::pass_through::no_connection;
use super::{Job, Stop};
use crate::breaker::{Change, Entry, Health};
use crate::caller::Stage;
use crate::catalog::names::own_name;
use crate::failure;
use tokio::time::Instant;
use toolbus_journal::Replay;
use toolbus_mcp::{Members, NameKey, Outcome, is_plain_request};
use toolbus_upstream::ServerError;

/// A connection that turns out to be dead is opened again once for a request that it has not taken.
const MOST: usize = 2;

/// How often a request was given to a connection that did not take it.
#[derive(Default)]
pub struct NotTaken(usize);

impl NotTaken {
    /// Ends the request if there is no point in another connection.
    pub fn count(&mut self, job: &Job, error: ServerError) -> Result<(), Stop> {
        self.0 += 1;
        if self.0 < MOST { Ok(()) } else { Err(no_connection(job, Some(error))) }
    }
}

impl Job {
    /// Returns when the server may be given the request: nobody has called it off, its time is not over, and it is written
    /// down that it begins.
    pub(super) async fn write_start(&self) -> Result<(), Stop> {
        // It stays in the mailbox, or in the journal, and the next host begins it.
        if self.host.shutdown.is_cancelled() && !self.is_begun().await {
            return Err(Stop::HandedOver);
        }
        self.refuse_called_off()?;
        self.authorise_again().await?;
        if let Some(record) = &self.record {
            if let Err(error) = record.begin(self.replay()).await {
                self.host.journal_failed(&error);
                return Err(failure::not_journaled(&error).into());
            }
            self.refuse_called_off()?;
        }
        self.caller.progress.set_stage(Stage::Running);
        Ok(())
    }

    fn refuse_called_off(&self) -> Result<(), Stop> {
        if self.caller.cancel.is_fired() { Err(Stop::Cancelled) } else { Ok(()) }
    }

    /// Whether the server may have heard of it.
    async fn is_begun(&self) -> bool {
        match &self.record {
            Some(record) => record.is_begun().await,
            None => false,
        }
    }

    /// The host ends, and with it the servers that the call waited for. What was not begun is not answered with that.
    pub(super) async fn is_left_to_the_next(&self, outcome: &Result<Outcome, Stop>) -> bool {
        let failed = match outcome {
            Err(Stop::With(outcome)) => failure::is_of_server(outcome),
            _ => false,
        };
        failed && self.record.is_some() && self.host.shutdown.is_cancelled() && !self.is_begun().await
    }

    pub fn replay(&self) -> Replay {
        self.host.replay_of(&self.server, self.own_tool(), false)
    }

    /// The tool under the server's own name.
    pub fn own_tool(&self) -> Option<&str> {
        let visible = self.subject.name.as_deref().filter(|_| self.subject.kind == "tool")?;
        own_name(self.server.config.prefix.as_deref(), visible)
    }

    /// The server took the request and ended without an answer. Returns if the request is to be given to it again.
    pub(super) async fn run_again(&self, error: &ServerError) -> Result<(), Stop> {
        let ended = || Stop::from(error.to_rpc_error());
        let Some(record) = &self.record else { return Err(ended()) };
        let died = matches!(error, ServerError::Died { .. } | ServerError::BrokenOff { .. });
        if !died || self.host.shutdown.is_cancelled() || self.caller.cancel.is_fired() {
            return Err(ended());
        }
        if record.may_run_again(error.to_string()).await {
            tracing::warn!(%error, tool = &*record.tool, "a call that may run twice is run again");
            self.note_health(Entry::Free, Health::Failed);
            return Ok(());
        }
        if !record.is_exhausted().await {
            return Err(ended());
        }
        let attempts = crate::journaled::MAX_ATTEMPTS;
        if let Err(error) = record.bury(attempts).await {
            self.host.journal_failed(&error);
        }
        Err(failure::poison(&record.tool, attempts).into())
    }

    /// What comes of a request that may run, if its server is not known to fail.
    pub(super) async fn at_healthy_server(&mut self, key: Option<NameKey>) -> Result<Outcome, Stop> {
        if is_plain_request(&self.rpc.method) {
            return self.at_server(key).await;
        }
        let entry = self.server.breaker().enter(Instant::now());
        if let Entry::Refused(wait) = entry {
            return Err(failure::tripped(self.server.name(), wait).into());
        }
        let mut probing = Probing { job: self, entry, health: Health::Unclear };
        let outcome = probing.job.at_server(key).await;
        probing.health = health_in(&outcome);
        drop(probing);
        outcome
    }

    fn note_health(&self, entry: Entry, health: Health) {
        let change = self.server.breaker().end(entry, health, Instant::now());
        let (name, trip) = (self.server.name(), self.server.config.calls.trip);
        match change {
            Change::None => {}
            Change::Tripped => {
                let why = format!(
                    "server {name:?} failed {} times within {:?}; its calls are refused, but one every {:?}, until one is \
                     answered",
                    trip.after, trip.window, trip.pause
                );
                tracing::error!("{why}");
                self.host.catalog.set_tripped(self.server.index, Some(why));
            }
            Change::Recovered => {
                tracing::info!(server = name, "the server answers again");
                self.host.catalog.set_tripped(self.server.index, None);
            }
        }
    }
}

/// Tells the breaker how the call went, also if it is dropped on its way: a probe that is forgotten would keep all others out.
struct Probing<'a> {
    job: &'a mut Job,
    entry: Entry,
    health: Health,
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.job.note_health(self.entry, self.health);
    }
}

/// Errors of the host's own making come as a stop, those of the server as an outcome.
fn health_in(outcome: &Result<Outcome, Stop>) -> Health {
    match outcome {
        Ok(_) => Health::Answered,
        Err(Stop::With(Outcome::Error(error))) => {
            let code =
                Members::of(Some(error)).ok().and_then(|error| Members::of(error.get("data")).ok()?.text("code"));
            match code.as_deref() {
                // It could not be started or reached, died, or killed the host's patience with a call that may run twice.
                Some("TB0402" | "TB0408" | "TB0421") => Health::Failed,
                _ => Health::Unclear,
            }
        }
        Err(_) => Health::Unclear,
    }
}
