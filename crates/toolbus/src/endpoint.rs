//! The MCP endpoint `/mcp` on the broker's port: authentication of HTTP clients, and their in-process connection to the
//! bus.

mod authentication;
mod metered_body;
mod pool;

use crate::commands::broker::OpenBroker;
use crate::commands::parse_duration;
use crate::failure::Failure;
use crate::roles::{claimed_role_without_rules, role_without_rules};
use authentication::{AuthOutcome, HttpAuthenticator, RequestPrincipals, RevocableBody};
use clap::Args;
use hyper::body::Incoming;
use hyper::{Request, Response};
use metered_body::MeteredBody;
use pool::Pool;
use std::sync::Arc;
use std::time::Duration;
use toolbus_broker::{AppBody, AppFuture, HttpApp, HttpWork, PeerConnection};
use toolbus_worker::{AuthFailure, HttpOptions, HttpService, SESSION_HEADER, WorkerOptions};

pub const PATH: &str = "/mcp";

/// How long a request waits if its agent makes more work than its share.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct EndpointArgs {
    /// Accept MCP clients on this machine without a token, in this role. For clients that can't send a token.
    #[arg(long, value_name = "ROLE")]
    pub loopback_role: Option<String>,
    /// Role of HTTP clients that use the shared token. The token of an agent determines its role.
    #[arg(long, value_name = "ROLE")]
    pub mcp_role: Option<String>,
    /// Deadline of calls over HTTP, including the time to wait for a host that is away.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// How long a call over HTTP waits for a host of a pool that left while it had the call. After that the call is withdrawn: it
    /// runs at another host of the pool if it may run twice, and fails otherwise (TB0420).
    #[arg(long, value_parser = parse_duration, default_value = "15s", value_name = "DURATION")]
    pool_grace: Duration,
    /// Answer clients that support tasks (MCP 2026-07-28) with a task if a call takes longer than this. By default only
    /// calls to hosts that are away become tasks. Such calls report no progress; clients with elicitation, sampling or
    /// roots keep ordinary calls.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    task_after: Option<Duration>,
}

/// Mounts the MCP endpoint on the broker's port.
pub fn mount(broker: &OpenBroker, args: EndpointArgs) -> Result<(), Failure> {
    if let Some(role) = &args.loopback_role {
        if !broker.address.ip().is_loopback() {
            return Err(Failure::LoopbackRoleExposed { address: broker.address });
        }
        tracing::warn!("every program on this machine can use the tools as role '{role}' without a token");
    }
    if args.mcp_role.is_some() && !broker.shared_token {
        return Err(Failure::RoleWithoutSharedToken);
    }
    let (call_deadline, pool_grace, task_after) = (args.deadline, args.pool_grace, args.task_after);
    let worker = WorkerOptions { call_deadline, pool_grace, task_after, ..WorkerOptions::default() };
    broker.server.reserve(authentication::WITHOUT_TOKEN);
    let pool = Arc::new(Pool::new(Arc::clone(&broker.server)));
    let authenticator = HttpAuthenticator {
        server: Arc::clone(&broker.server),
        shared_token: broker.shared_token,
        role: args.mcp_role,
        loopback_role: args.loopback_role,
    };
    let session_folder = Some(broker.data.join("mcp-sessions"));
    let options = HttpOptions { worker, session_folder, ..HttpOptions::default() };
    let service = HttpService::new(
        Arc::new(RequestPrincipals { server: Arc::clone(&broker.server) }),
        Arc::clone(&pool) as _,
        options,
    );
    broker.server.mount(PATH, Arc::new(Endpoint { authenticator: Arc::new(authenticator), pool, service }));
    Ok(())
}

impl EndpointArgs {
    /// Warnings for the banner about the roles of HTTP clients. `roles` are the roles in the broker's file.
    pub fn warnings(&self, roles: &[&str], shared_token: bool) -> Vec<String> {
        let without_rules = |option: &str, role: &String| match shared_token {
            true => claimed_role_without_rules(option, role, roles),
            false => role_without_rules(option, role, roles),
        };
        let open = self.loopback_role.iter().map(|role| {
            format!(
                "WARNING: --loopback-role is set. Every program on this machine can use the tools as role '{role}' \
                 without a token."
            )
        });
        let loopback = self.loopback_role.iter().filter_map(|role| without_rules("--loopback-role", role));
        let shared = self.mcp_role.iter().filter_map(|role| without_rules("--mcp-role", role));
        open.chain(loopback).chain(shared).collect()
    }
}

struct Endpoint {
    authenticator: Arc<HttpAuthenticator>,
    pool: Arc<Pool>,
    service: Arc<HttpService>,
}

impl HttpApp for Endpoint {
    fn call(&self, mut request: Request<Incoming>) -> AppFuture {
        let outcome = self.authenticator.authenticate(&request);
        let service = Arc::clone(&self.service);
        let Ok(identity) = &outcome else {
            request.extensions_mut().insert(AuthOutcome(outcome));
            return Box::pin(service.handle(request));
        };
        let connection = request.extensions().get::<PeerConnection>().cloned();
        if let Some(Err(refusal)) = connection.as_ref().map(|connection| connection.belongs_to(identity)) {
            return Box::pin(std::future::ready(*refusal));
        }
        let standing = identity.standing.clone();
        self.pool.register(identity);
        request.extensions_mut().insert(AuthOutcome(outcome));
        let pause = connection.as_ref().map_or(Duration::ZERO, |connection| connection.work(HttpWork::Request));
        let request = request.map(|body| MeteredBody::new(body, connection.clone()));
        Box::pin(async move {
            let handled = async {
                if !pause.is_zero() {
                    tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
                }
                let answer = service.handle(request).await;
                if let (Some(connection), Some(work)) = (connection, work_after(&answer)) {
                    connection.work(work);
                }
                answer
            };
            // A credential that ends during a call or a stream ends the call or stream as well.
            tokio::select! {
                answer = handled => answer.map(|body| AppBody::new(RevocableBody::new(body, standing))),
                _ = standing.wait() => refused(&AuthFailure::Invalid),
            }
        })
    }

    /// Clients whose connection ends with the server cancelled nothing.
    fn stopping(&self) {
        self.service.detach();
    }
}

/// What a request was besides a request, by its answer. Only the answer to `initialize` names a session.
fn work_after<B>(answer: &Response<B>) -> Option<HttpWork> {
    match answer.status().as_u16() {
        400.. => Some(HttpWork::Refusal),
        _ => answer.headers().contains_key(SESSION_HEADER).then_some(HttpWork::NewSession),
    }
}

fn refused(failure: &AuthFailure) -> Response<AppBody> {
    toolbus_worker::unauthorized(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(status: u16, session: Option<&str>) -> Option<HttpWork> {
        let mut answer = Response::builder().status(status);
        if let Some(session) = session {
            answer = answer.header(SESSION_HEADER, session);
        }
        work_after(&answer.body(()).expect("an answer"))
    }

    #[test]
    fn a_new_session_and_a_refusal_count_more_than_a_request() {
        assert_eq!(work(200, None), None);
        assert_eq!(work(200, Some("1")), Some(HttpWork::NewSession));
        assert_eq!(work(503, None), Some(HttpWork::Refusal));
        assert_eq!(work(400, Some("1")), Some(HttpWork::Refusal));
    }
}
