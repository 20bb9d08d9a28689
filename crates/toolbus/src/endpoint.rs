//! `/mcp` on the broker's port: who may use it, and the way from there onto the bus within this process.

use crate::commands::broker::OpenBroker;
use crate::commands::parse_duration;
use crate::failure::Failure;
use crate::front_bus;
use clap::Args;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use toolbus_broker::{AppFuture, BrokerServer, Credential, HttpApp};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::AgentRef;
use toolbus_worker::{
    AuthFailure, BoxFuture, Bus, BusPool, HttpOptions, HttpService, Principal, Principals, WorkerOptions,
};

pub const PATH: &str = "/mcp";

/// The mailboxes of HTTP clients, for those with the token and those without.
const WITH_TOKEN: &str = "mcp";
const WITHOUT_TOKEN: &str = "mcp-loopback";

#[derive(Args)]
pub struct EndpointArgs {
    /// Let MCP clients on this machine in without a token, in this role. For tools that can't send one.
    #[arg(long, value_name = "ROLE")]
    pub loopback_role: Option<String>,
    /// Role of MCP clients that come over HTTP with the token.
    #[arg(long, value_name = "ROLE")]
    pub mcp_role: Option<String>,
    /// How long a call over HTTP may take, waiting for a host that is away included.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    deadline: Duration,
}

/// Makes the broker answer MCP clients on its port.
pub fn mount(broker: &OpenBroker, args: EndpointArgs) -> Result<(), Failure> {
    if let Some(role) = &args.loopback_role {
        if !broker.address.ip().is_loopback() {
            return Err(Failure::OpenToAll { address: broker.address });
        }
        tracing::warn!("every program on this machine may use the tools as role '{role}', without a token");
    }
    let worker = WorkerOptions { call_deadline: args.deadline, ..WorkerOptions::default() };
    let gate = Gate { server: Arc::clone(&broker.server), role: args.mcp_role, loopback_role: args.loopback_role };
    let pool = Pool { server: Arc::clone(&broker.server), open: Mutex::default() };
    let service = HttpService::new(Arc::new(gate), Arc::new(pool), HttpOptions { worker, ..HttpOptions::default() });
    broker.server.mount(PATH, Arc::new(Endpoint(service)));
    Ok(())
}

/// Said loudly at the start.
pub fn warning(role: &str) -> String {
    format!(
        "WARNING: --loopback-role is on. Every program on this machine may use the tools as role '{role}', without a \
         token."
    )
}

struct Endpoint(Arc<HttpService>);

impl HttpApp for Endpoint {
    fn call(&self, request: Request<Incoming>) -> AppFuture {
        Box::pin(Arc::clone(&self.0).handle(request))
    }
}

struct Gate {
    server: Arc<BrokerServer>,
    role: Option<String>,
    loopback_role: Option<String>,
}

impl Principals for Gate {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<Principal, AuthFailure>> {
        Box::pin(std::future::ready(self.look_at(headers)))
    }
}

impl Gate {
    fn look_at(&self, headers: &HeaderMap) -> Result<Principal, AuthFailure> {
        let Some(header) = headers.get(AUTHORIZATION) else {
            let role = self.loopback_role.clone().ok_or(AuthFailure::Missing)?;
            return Ok(Principal { name: WITHOUT_TOKEN.into(), role: Some(role) });
        };
        let token = header.to_str().ok().and_then(bearer).ok_or(AuthFailure::Invalid)?;
        let agent = crate::reach::in_role(AgentRef::new(WITH_TOKEN), self.role.clone());
        let credential = Credential { token, certificate: None, claimed: &agent };
        let agent = self.server.authenticate(&credential).map_err(|_| AuthFailure::Invalid)?.agent;
        Ok(Principal { name: agent.session_id.to_string(), role: agent.role.map(|role| role.to_string()) })
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// There are as many principals as there are ways through the gate: two.
struct Pool {
    server: Arc<BrokerServer>,
    open: Mutex<HashMap<Principal, Arc<dyn Bus>>>,
}

impl BusPool for Pool {
    fn bus<'a>(&'a self, principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>> {
        Box::pin(async move {
            let mut open = self.open.lock().await;
            if let Some(bus) = open.get(principal) {
                return Ok(Arc::clone(bus));
            }
            let agent = crate::reach::in_role(AgentRef::new(principal.name.clone()), principal.role.clone());
            let (server, me) = (Arc::clone(&self.server), agent.clone());
            let pipes = move || server.attach(me.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
            let client = BrokerClient::connect_local(pipes, agent, ClientOptions::default()).await?;
            let bus: Arc<dyn Bus> = front_bus::open(client).await?;
            open.insert(principal.clone(), Arc::clone(&bus));
            Ok(bus)
        })
    }
}
