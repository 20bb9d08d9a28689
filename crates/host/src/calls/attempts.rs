//! Starts a request at its server: START is journaled before the request is sent, the request is sent again only if no
//! server took it or if it is replay-safe, and a circuit breaker keeps it from a failing server.

use super::pass_through::no_connection;
use super::{Job, Stop};
use crate::caller::Stage;
use crate::catalog::names::own_name;
use crate::circuit_breaker::{Change, Entry, Health};
use crate::failure;
use tokio::time::Instant;
use toolbus_journal::Replay;
use toolbus_mcp::{Members, NameKey, Outcome, is_plain_request};
use toolbus_upstream::ServerError;

/// A request that a dead connection did not take is sent once more, on a new connection.
const MAX_NOT_TAKEN: usize = 2;

/// How often a connection did not take the request.
#[derive(Default)]
pub struct NotTaken(usize);

impl NotTaken {
    /// Returns an error if no further connection should be tried.
    pub fn count(&mut self, job: &Job, error: ServerError) -> Result<(), Stop> {
        self.0 += 1;
        if self.0 < MAX_NOT_TAKEN { Ok(()) } else { Err(no_connection(job, Some(error))) }
    }
}

impl Job {
    /// Returns when the request may be sent: it is neither cancelled nor expired, and its START is journaled.
    pub(super) async fn write_start(&self) -> Result<(), Stop> {
        // The request stays in the mailbox or in the journal, and the next host starts it.
        if self.host.draining.is_cancelled() && !self.is_begun().await {
            return Err(Stop::HandedOver);
        }
        self.refuse_cancelled()?;
        self.authorise_again().await?;
        if let Some(record) = &self.record {
            if let Err(error) = record.begin(self.replay()).await {
                self.host.journal_failed(&error);
                return Err(failure::not_journaled(&error).into());
            }
            self.refuse_cancelled()?;
        }
        self.caller.progress.set_stage(Stage::Running);
        Ok(())
    }

    fn refuse_cancelled(&self) -> Result<(), Stop> {
        if self.caller.cancel.is_fired() { Err(Stop::Cancelled) } else { Ok(()) }
    }

    /// Whether the server may have received the request.
    async fn is_begun(&self) -> bool {
        match &self.record {
            Some(record) => record.is_begun().await,
            None => false,
        }
    }

    /// What becomes of a request whose server was closed by the shutdown of this host. One that was not started, or may
    /// run twice, is left to the next host; the effect of any other is unknown.
    pub(super) async fn after_shutdown(&self, outcome: Result<Outcome, Stop>) -> Result<Outcome, Stop> {
        let failed = match &outcome {
            Ok(outcome) | Err(Stop::With(outcome)) => failure::is_server_failure(outcome),
            Err(_) => false,
        };
        let Some(record) = self.record.as_ref().filter(|_| failed && self.host.shutdown.is_cancelled()) else {
            return outcome;
        };
        match record.begun().await {
            None | Some((Replay::Safe, _)) => Err(Stop::HandedOver),
            Some((Replay::Never, attempt)) => {
                Err(Stop::Unknown(failure::outcome_unknown(&record.start(attempt, Replay::Never))))
            }
        }
    }

    pub fn replay(&self) -> Replay {
        self.host.replay_of(&self.server, self.own_tool(), false)
    }

    /// The tool under the server's own name.
    pub fn own_tool(&self) -> Option<&str> {
        let visible = self.subject.name.as_deref().filter(|_| self.subject.kind == "tool")?;
        own_name(self.server.config.prefix.as_deref(), visible)
    }

    /// Handles a server that took the request and ended without an answer. Returns `Ok` if the request is to be sent
    /// again.
    pub(super) async fn run_again(&self, error: &ServerError) -> Result<(), Stop> {
        let ended = || Stop::from(error.to_rpc_error());
        let Some(record) = &self.record else { return Err(ended()) };
        let died = matches!(error, ServerError::Died { .. } | ServerError::BrokenOff { .. });
        if !died || self.host.draining.is_cancelled() || self.caller.cancel.is_fired() {
            return Err(ended());
        }
        if record.may_run_again(error.to_string()).await {
            tracing::warn!(%error, tool = &*record.tool, "running a replay-safe call again");
            self.note_health(Entry::Allowed, Health::Failed);
            return Ok(());
        }
        if !record.is_exhausted().await {
            return Err(ended());
        }
        let attempts = crate::journaled::MAX_ATTEMPTS;
        if let Err(error) = record.dead_letter(attempts).await {
            self.host.journal_failed(&error);
        }
        Err(failure::poison(&record.tool, attempts).into())
    }

    /// Runs the request, unless the circuit breaker refuses it.
    pub(super) async fn run_behind_circuit_breaker(&mut self, key: Option<NameKey>) -> Result<Outcome, Stop> {
        if is_plain_request(&self.rpc.method) {
            return self.run_at_server(key).await;
        }
        let entry = self.server.circuit_breaker().enter(Instant::now());
        if let Entry::Refused(wait) = entry {
            return Err(failure::tripped(self.server.name(), wait).into());
        }
        let mut probing = Probing { job: self, entry, health: Health::Unclear };
        let outcome = probing.job.run_at_server(key).await;
        // A server that this host closes has not failed.
        if !probing.job.host.shutdown.is_cancelled() {
            probing.health = health_in(&outcome);
        }
        drop(probing);
        outcome
    }

    fn note_health(&self, entry: Entry, health: Health) {
        let change = self.server.circuit_breaker().end(entry, health, Instant::now());
        let (name, trip) = (self.server.name(), self.server.config.calls.trip);
        match change {
            Change::None => {}
            Change::Tripped => {
                let why = format!(
                    "server {name:?} failed {} times within {:?}; its calls are refused, except for one \
                     every {:?}, until one is answered",
                    trip.after, trip.window, trip.pause
                );
                tracing::error!("{why}");
                self.host.catalog.set_tripped(self.server.index, Some(why));
            }
            Change::Recovered => {
                tracing::info!(server = name, "the server has recovered");
                self.host.catalog.set_tripped(self.server.index, None);
            }
        }
    }
}

/// Reports the call to the circuit breaker on drop: a lost probe would keep all other calls out.
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

/// The host's own errors arrive as `Stop`, the server's as outcomes.
fn health_in(outcome: &Result<Outcome, Stop>) -> Health {
    match outcome {
        Ok(_) => Health::Answered,
        Err(Stop::With(Outcome::Error(error))) => {
            let code =
                Members::of(Some(error)).ok().and_then(|error| Members::of(error.get("data")).ok()?.text("code"));
            match code.as_deref() {
                // The server could not be started or reached, died, or died at every attempt of a replay-safe call.
                Some("TB0402" | "TB0408" | "TB0421") => Health::Failed,
                _ => Health::Unclear,
            }
        }
        Err(_) => Health::Unclear,
    }
}
