//! `/mcp` on the broker's port: who may use it, and the way from there onto the bus within this process.

mod gate;
mod pool;

use crate::commands::broker::OpenBroker;
use crate::commands::parse_duration;
use crate::failure::Failure;
use crate::roles::{claimed_role_without_rules, role_without_rules};
use clap::Args;
use gate::{Admission, FromAdmission, Gate};
use hyper::body::Incoming;
use hyper::{Request, Response};
use pool::Pool;
use std::sync::Arc;
use std::time::Duration;
use toolbus_broker::{AppBody, AppFuture, HttpApp};
use toolbus_worker::{AuthFailure, HttpOptions, HttpService, WorkerOptions};

pub const PATH: &str = "/mcp";

#[derive(Args)]
pub struct EndpointArgs {
    /// Let MCP clients on this machine in without a token, in this role. For tools that can't send one.
    #[arg(long, value_name = "ROLE")]
    pub loopback_role: Option<String>,
    /// Role of MCP clients that come over HTTP with the shared token. Tokens of agents bring their own role.
    #[arg(long, value_name = "ROLE")]
    pub mcp_role: Option<String>,
    /// How long a call over HTTP may take, waiting for a host that is away included.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
    /// Give clients that know tasks (MCP 2026-07-28) a task for a call that takes longer than this. By default only calls to
    /// hosts that are away become tasks. Such calls show no progress; clients that can be asked things keep ordinary calls.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    task_after: Option<Duration>,
}

/// Makes the broker answer MCP clients on its port.
pub fn mount(broker: &OpenBroker, args: EndpointArgs) -> Result<(), Failure> {
    if let Some(role) = &args.loopback_role {
        if !broker.address.ip().is_loopback() {
            return Err(Failure::OpenToAll { address: broker.address });
        }
        tracing::warn!("every program on this machine may use the tools as role '{role}', without a token");
    }
    if args.mcp_role.is_some() && !broker.shared_token {
        return Err(Failure::RoleWithoutSharedToken);
    }
    let (call_deadline, task_after) = (args.deadline, args.task_after);
    let worker = WorkerOptions { call_deadline, task_after, ..WorkerOptions::default() };
    broker.server.reserve(gate::WITHOUT_TOKEN);
    let pool = Arc::new(Pool::new(Arc::clone(&broker.server)));
    let gate = Gate {
        server: Arc::clone(&broker.server),
        shared_token: broker.shared_token,
        role: args.mcp_role,
        loopback_role: args.loopback_role,
    };
    let options = HttpOptions { worker, ..HttpOptions::default() };
    let service = HttpService::new(Arc::new(FromAdmission), Arc::clone(&pool) as _, options);
    broker.server.mount(PATH, Arc::new(Endpoint { gate: Arc::new(gate), pool, service }));
    Ok(())
}

impl EndpointArgs {
    /// What the start has to say about the roles that HTTP clients get, in a broker whose file names these roles.
    pub fn warnings(&self, roles: &[&str], shared_token: bool) -> Vec<String> {
        let without_rules = |option: &str, role: &String| match shared_token {
            true => claimed_role_without_rules(option, role, roles),
            false => role_without_rules(option, role, roles),
        };
        let open = self.loopback_role.iter().map(|role| {
            format!(
                "WARNING: --loopback-role is on. Every program on this machine may use the tools as role '{role}', \
                 without a token."
            )
        });
        let loopback = self.loopback_role.iter().filter_map(|role| without_rules("--loopback-role", role));
        let shared = self.mcp_role.iter().filter_map(|role| without_rules("--mcp-role", role));
        open.chain(loopback).chain(shared).collect()
    }
}

struct Endpoint {
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    service: Arc<HttpService>,
}

impl HttpApp for Endpoint {
    fn call(&self, mut request: Request<Incoming>) -> AppFuture {
        let admission = self.gate.look_at(&request);
        let service = Arc::clone(&self.service);
        let Ok(identity) = &admission else {
            request.extensions_mut().insert(Admission(admission));
            return Box::pin(service.handle(request));
        };
        let standing = identity.standing.clone();
        self.pool.introduce(identity);
        request.extensions_mut().insert(Admission(admission));
        Box::pin(async move {
            // Whoever loses the credential in the middle of a call or a stream loses that as well.
            tokio::select! {
                answer = service.handle(request) => answer.map(|body| AppBody::new(gate::WhileGood::new(body, standing))),
                _ = standing.wait() => refused(&AuthFailure::Invalid),
            }
        })
    }
}

fn refused(failure: &AuthFailure) -> Response<AppBody> {
    toolbus_worker::unauthorized(failure)
}
