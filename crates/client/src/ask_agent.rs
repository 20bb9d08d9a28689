//! One question without a client at hand. Concurrent questions of one agent share a connection: a second subscriber would
//! displace the first one and take its answers.

use crate::{AskMode, BrokerClient, BrokerError, BrokerResult, MultiplexedClient};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use toolbus_protocol::AgentRef;

/// Maximum number of agents with questions at the same time.
const MAX_CALLERS: usize = 1024;

/// An agent at a broker, and its connection while it has questions.
struct Caller {
    endpoint: String,
    me: AgentRef,
    token: String,
    connection: Arc<tokio::sync::Mutex<Weak<MultiplexedClient>>>,
}

static CALLERS: Mutex<Vec<Caller>> = Mutex::new(Vec::new());

/// Connects as `me`, asks `target` and returns its answer. `timeout` includes connecting.
pub async fn ask_agent(
    endpoint: &str,
    me: AgentRef,
    token: &str,
    target: &str,
    question: &str,
    mode: AskMode,
    timeout: Duration,
) -> BrokerResult<String> {
    let deadline = Instant::now() + timeout;
    let connected = timeout_at(deadline, connection(endpoint, &me, token)).await;
    let client = connected.map_err(|_| BrokerError::Timeout(timeout))??;
    let left = deadline.saturating_duration_since(Instant::now());
    client.ask_in_mode(target, question, mode, left).await
}

async fn connection(endpoint: &str, me: &AgentRef, token: &str) -> BrokerResult<Arc<MultiplexedClient>> {
    let slot = slot(endpoint, me, token)?;
    let mut current = slot.lock().await;
    if let Some(client) = current.upgrade().filter(|client| client.client().end_reason().is_none()) {
        return Ok(client);
    }
    let client = BrokerClient::connect(endpoint, me.clone(), token).await?;
    let client = Arc::new(client.into_multiplexed());
    *current = Arc::downgrade(&client);
    Ok(client)
}

fn slot(endpoint: &str, me: &AgentRef, token: &str) -> BrokerResult<Arc<tokio::sync::Mutex<Weak<MultiplexedClient>>>> {
    let mut callers = CALLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_used = |caller: &Caller| {
        let connection = &caller.connection;
        Arc::strong_count(connection) > 1 || connection.try_lock().is_ok_and(|client| client.strong_count() > 0)
    };
    callers.retain(is_used);
    let same = |caller: &&Caller| caller.endpoint == endpoint && caller.me == *me && caller.token == token;
    if let Some(caller) = callers.iter().find(same) {
        return Ok(Arc::clone(&caller.connection));
    }
    if callers.len() >= MAX_CALLERS {
        let reason = format!("{MAX_CALLERS} agents of this process are asking already");
        return Err(BrokerError::Transport(reason));
    }
    let connection = Arc::default();
    let (endpoint, token) = (endpoint.to_owned(), token.to_owned());
    callers.push(Caller { endpoint, me: me.clone(), token, connection: Arc::clone(&connection) });
    Ok(connection)
}
