//! Client and server use the same era: requests and everything that comes back are passed through unchanged.

use super::attempts::NotTaken;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::failure;
use crate::session::Session;
use crate::translate::listen::LISTEN;
use crate::translate::log_level::LogLevel;
use crate::upstream::{Upstream, Usage};
use crate::upstream_call::UpstreamCall;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Members, Outcome, Raw, RpcError, codes, empty_object, meta};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{Eras, ServerError};

pub async fn modern(job: &mut Job, eras: &Eras, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    // A listen lasts as long as its client, so it must not take a permit from calls.
    let is_listen = job.rpc.method == LISTEN;
    let _permit = if is_listen { None } else { Some(job.server_permit().await?) };
    let mut not_taken = NotTaken::default();
    loop {
        let upstream = job.server.modern_upstream(&job.host, eras).await.map_err(Outcome::from)?;
        let wants_log = job.rpc.params.as_ref().is_some_and(|params| params.get().contains(meta::LOG_LEVEL));
        let _log_receiver = wants_log.then(|| upstream.add_log_receiver(&job.caller));
        job.write_start().await?;
        let call = match upstream.connection.start(&job.rpc.method, job.rpc.params.clone()).await {
            Ok(call) => call,
            Err(error) => {
                not_taken.count(job, error)?;
                continue;
            }
        };
        let ended = if is_listen {
            job.relay_listen(&upstream, call).await?
        } else {
            job.relay(&upstream, UpstreamCall::new(call, timeout), None).await?
        };
        match ended {
            Ended::Outcome(outcome) => return Ok(job.filtered(outcome)),
            Ended::NotRun(error) => not_taken.count(job, error)?,
            Ended::Again => {}
        }
    }
}

pub async fn legacy(job: &mut Job, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    job.wait_for_order().await?;
    let Some((session, ticket)) = job.session.take() else { return Err(without_session().into()) };
    let _in_use = session.begin_use();
    if job.rpc.method == "initialize" {
        let params = job.rpc.params.clone().unwrap_or_else(empty_object);
        return job.server.initialize(&job.host, &session, params).await.map(Outcome::Result).map_err(Stop::With);
    }
    let job = &*job;
    let Some(initialize) = &job.rpc.client.initialize else { return Err(without_session().into()) };
    let _permit = job.server_permit().await?;
    let mut ticket = Some(ticket);
    let mut not_taken = NotTaken::default();
    loop {
        let opening = job.server.session_upstream(&job.host, &session, || initialize.clone());
        let upstream = tokio::select! {
            biased;
            upstream = opening => upstream.map_err(Stop::With)?,
            () = job.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        if let Some(outcome) = answered_here(job, &session, &upstream)? {
            return Ok(outcome);
        }
        job.write_start().await?;
        let call = match upstream.connection.start(&job.rpc.method, job.rpc.params.clone()).await {
            Ok(call) => call,
            Err(error) => {
                forget(&session, &upstream).await;
                not_taken.count(job, error)?;
                continue;
            }
        };
        drop(ticket.take());
        match job.relay(&upstream, UpstreamCall::new(call, timeout), Some(&session)).await? {
            Ended::Outcome(outcome) => {
                remember(job, &session, &upstream, &outcome);
                return Ok(job.filtered(outcome));
            }
            Ended::NotRun(error) => {
                forget(&session, &upstream).await;
                not_taken.count(job, error)?;
            }
            Ended::Again => forget(&session, &upstream).await,
        }
    }
}

/// On a shared connection, only the first subscription and the last unsubscription of a resource reach the server.
fn answered_here(job: &Job, session: &Session, upstream: &Upstream) -> Result<Option<Outcome>, RpcError> {
    if upstream.usage != Usage::Shared {
        return Ok(None);
    }
    let uri = || Ok::<_, RpcError>(Members::of(job.rpc.params.as_deref()).map_err(bad_params)?.text("uri"));
    let settled = match job.rpc.method.as_str() {
        "ping" => true,
        "resources/subscribe" => match uri()? {
            Some(uri) => !session.subscribe(&uri) || !upstream.add_subscription(&uri),
            None => false,
        },
        "resources/unsubscribe" => match uri()? {
            Some(uri) => !session.unsubscribe(&uri) || !upstream.remove_subscription(&uri),
            None => false,
        },
        _ => false,
    };
    Ok(settled.then(|| Outcome::Result(empty_object())))
}

/// Remembers state that must be restored if the connection is lost.
fn remember(job: &Job, session: &Session, upstream: &Upstream, outcome: &Outcome) {
    if upstream.usage == Usage::Shared || matches!(outcome, Outcome::Error(_)) {
        return;
    }
    let text = |name: &str| Members::of(job.rpc.params.as_deref()).ok()?.text(name);
    match job.rpc.method.as_str() {
        "logging/setLevel" => {
            if let Some(level) = text("level").as_deref().and_then(LogLevel::parse) {
                session.set_level(level);
            }
        }
        "resources/subscribe" => drop(text("uri").map(|uri| session.subscribe(&uri))),
        "resources/unsubscribe" => drop(text("uri").map(|uri| session.unsubscribe(&uri))),
        _ => {}
    }
}

/// Closes the connection, so that the next attempt opens a new one.
pub async fn forget(session: &Session, upstream: &Arc<Upstream>) {
    let mut current = session.upstream.lock().await;
    if current.as_ref().is_some_and(|present| Arc::ptr_eq(present, upstream)) {
        upstream.close().await;
        // Kept, so that the next connection restores the session's state.
        *current = Some(Arc::clone(upstream));
    }
}

pub fn no_connection(job: &Job, last: Option<ServerError>) -> Stop {
    match last {
        // The connection was closed before anything was sent.
        None | Some(ServerError::Closed { .. }) => {
            let message = format!("server {:?} closes its connections immediately", job.server.name());
            failure::bus(ErrorCode::ServerDown, message).into()
        }
        Some(error) => error.to_rpc_error().into(),
    }
}

pub fn without_session() -> RpcError {
    RpcError::new(codes::INVALID_REQUEST, "`client.initialize` is missing, which is required of legacy clients")
}

/// Adds the id of the listen stream that the result ends.
pub fn with_subscription(result: Raw, id: &str) -> Raw {
    meta::set(Some(&result), meta::SUBSCRIPTION_ID, toolbus_mcp::raw(id)).unwrap_or(result)
}
