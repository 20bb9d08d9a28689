//! Client and server speak the same era: the request goes to the server as it is, and so does everything that comes back.

use super::attempts::NotTaken;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::failure;
use crate::link::{Link, Use};
use crate::session::Session;
use crate::translate::listen::LISTEN;
use crate::translate::log_level::LogLevel;
use crate::upstream_call::UpstreamCall;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Members, Outcome, Raw, RpcError, codes, empty_object, meta};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{Eras, ServerError};

pub async fn modern(job: &mut Job, eras: &Eras, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    // A listen lasts as long as its client; it must not take a place from calls.
    let is_listen = job.rpc.method == LISTEN;
    let _permit = if is_listen { None } else { Some(job.permit().await?) };
    let mut not_taken = NotTaken::default();
    loop {
        let link = job.server.modern_link(&job.host, eras).await.map_err(Outcome::from)?;
        let wants_log = job.rpc.params.as_ref().is_some_and(|params| params.get().contains(meta::LOG_LEVEL));
        let _logger = wants_log.then(|| link.add_logger(&job.caller));
        job.write_start().await?;
        let call = match link.connection.start(&job.rpc.method, job.rpc.params.clone()).await {
            Ok(call) => call,
            Err(error) => {
                not_taken.count(job, error)?;
                continue;
            }
        };
        let ended = if is_listen {
            job.relay_listen(&link, call).await?
        } else {
            job.relay(&link, UpstreamCall::new(call, timeout), None).await?
        };
        match ended {
            Ended::Outcome(outcome) => return Ok(job.seen(outcome)),
            Ended::NotRun(error) => not_taken.count(job, error)?,
            Ended::Again => {}
        }
    }
}

pub async fn legacy(job: &mut Job, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    job.wait_for_turn().await?;
    let Some((session, turn)) = job.session.take() else { return Err(without_session().into()) };
    let _in_use = session.begin_use();
    if job.rpc.method == "initialize" {
        let params = job.rpc.params.clone().unwrap_or_else(empty_object);
        return job.server.initialize(&job.host, &session, params).await.map(Outcome::Result).map_err(Stop::With);
    }
    let job = &*job;
    let Some(initialize) = &job.rpc.client.initialize else { return Err(without_session().into()) };
    let _permit = job.permit().await?;
    let mut turn = Some(turn);
    let mut not_taken = NotTaken::default();
    loop {
        let opening = job.server.session_link(&job.host, &session, || initialize.clone());
        let link = tokio::select! {
            biased;
            link = opening => link.map_err(Stop::With)?,
            () = job.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        if let Some(outcome) = settled_here(job, &session, &link)? {
            return Ok(outcome);
        }
        job.write_start().await?;
        let call = match link.connection.start(&job.rpc.method, job.rpc.params.clone()).await {
            Ok(call) => call,
            Err(error) => {
                forget(&session, &link).await;
                not_taken.count(job, error)?;
                continue;
            }
        };
        drop(turn.take());
        match job.relay(&link, UpstreamCall::new(call, timeout), Some(&session)).await? {
            Ended::Outcome(outcome) => {
                remember(job, &session, &link, &outcome);
                return Ok(job.seen(outcome));
            }
            Ended::NotRun(error) => {
                forget(&session, &link).await;
                not_taken.count(job, error)?;
            }
            Ended::Again => forget(&session, &link).await,
        }
    }
}

/// On a shared connection the server is told of the first subscription and of the end of the last.
fn settled_here(job: &Job, session: &Session, link: &Link) -> Result<Option<Outcome>, RpcError> {
    if link.usage != Use::Shared {
        return Ok(None);
    }
    let uri = || Ok::<_, RpcError>(Members::of(job.rpc.params.as_deref()).map_err(bad_params)?.text("uri"));
    let settled = match job.rpc.method.as_str() {
        "ping" => true,
        "resources/subscribe" => match uri()? {
            Some(uri) => !session.subscribe(&uri) || !link.subscribed(&uri),
            None => false,
        },
        "resources/unsubscribe" => match uri()? {
            Some(uri) => !session.unsubscribe(&uri) || !link.unsubscribed(&uri),
            None => false,
        },
        _ => false,
    };
    Ok(settled.then(|| Outcome::Result(empty_object())))
}

/// What has to be set up again if the connection is lost.
fn remember(job: &Job, session: &Session, link: &Link, outcome: &Outcome) {
    if link.usage == Use::Shared || matches!(outcome, Outcome::Error(_)) {
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

/// The next attempt opens a new connection.
pub async fn forget(session: &Session, link: &Arc<Link>) {
    let mut place = session.link.lock().await;
    if place.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
        link.close().await;
        // The place stays marked as used, so that what was set up is set up again.
        *place = Some(Arc::clone(link));
    }
}

pub fn no_connection(job: &Job, last: Option<ServerError>) -> Stop {
    match last {
        // Nothing was sent on a connection that was closed before.
        None | Some(ServerError::Closed { .. }) => {
            let message = format!("server {:?} closes its connections at once", job.server.name());
            failure::bus(ErrorCode::ServerDown, message).into()
        }
        Some(error) => error.to_rpc_error().into(),
    }
}

pub fn without_session() -> RpcError {
    RpcError::new(codes::INVALID_REQUEST, "a legacy client has to say who it is: `client.initialize` is missing")
}

/// A result's mark of the listen stream that it ends.
pub fn with_subscription(result: Raw, id: &str) -> Raw {
    meta::set(Some(&result), meta::SUBSCRIPTION_ID, toolbus_mcp::raw(id)).unwrap_or(result)
}
