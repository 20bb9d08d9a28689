//! The ways in which agents misbehave. Each runs as several tasks of each hostile agent, until the process is killed.

mod bus;
mod frames;
mod held;
mod http;
mod raw;

use std::sync::Arc;

use clap::ValueEnum;

use super::hostile::Agent;

/// Connections that one hostile agent keeps open at most: more than the broker allows one agent.
const MAX_HELD: usize = 2_000;
/// Incomplete messages of one hostile agent. Together they exceed the goal for memory, but not the machine's memory.
const MAX_HALVES: usize = 10;
/// Length of a large message, below the broker's limit of 16 MiB.
const LARGE: usize = 15 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Calls over the bus that no rule allows, each in a new session.
    DeniedCalls,
    /// The same over HTTP: initialize, initialized, call.
    DeniedHttp,
    /// Legacy HTTP sessions that are opened and never used.
    Sessions,
    /// Legacy HTTP sessions that are opened and ended at once.
    EndedSessions,
    /// Idle connections to the bus.
    BusConnections,
    /// Idle HTTP connections that were authenticated once.
    HttpConnections,
    /// WebSocket messages of 15 MiB without their last byte.
    HalfFrames,
    /// HTTP requests of 15 MiB without their last byte.
    HalfBodies,
    /// Messages of 15 MiB to a host, to the agent itself and to unknown mailboxes.
    BigMessages,
    /// Calls to a host by an agent that never reads a reply.
    Queue,
    /// New sessions at a legacy stdio server, each of which needs a process.
    Processes,
    /// Slow calls, many at a time.
    Running,
    /// Lists of tools, hosts, mailboxes and connections.
    Lists,
    /// Subscriptions by `subscriptions/listen`.
    Listens,
    /// Manifests announced by an agent that is not a host.
    Announcements,
    /// Unreadable frames, and a new connection after each.
    BadFrames,
    /// Cancels of messages that don't exist.
    Cancels,
    /// Requests with long answers on connections that are never read.
    SlowReader,
}

/// The rights of hostile agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// May use nothing.
    Nothing,
    /// May use the tool of the legacy server.
    OneTool,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Nothing => "nothing",
            Role::OneTool => "one-tool",
        }
    }
}

impl Way {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The least rights with which this way makes sense.
    pub fn role(self) -> Role {
        match self {
            Way::Processes | Way::Running => Role::OneTool,
            _ => Role::Nothing,
        }
    }

    /// Number of concurrent tasks of each hostile agent.
    pub fn tasks(self) -> usize {
        match self {
            Way::DeniedHttp | Way::Sessions | Way::EndedSessions | Way::BadFrames | Way::SlowReader => 8,
            _ => 1,
        }
    }

    /// Misbehaves until an error, such as a lost connection.
    pub async fn run(self, agent: &Arc<Agent>, task: usize) -> anyhow::Result<()> {
        let requests = bus::Reading::AndAcknowledging;
        match self {
            Way::DeniedCalls => bus::flood(agent, task, requests, |n| frames::call(n, &n.to_string(), 0)).await,
            Way::DeniedHttp => http::sessions(agent, http::Then::Call).await,
            Way::Sessions => http::sessions(agent, http::Then::Leave).await,
            Way::EndedSessions => http::sessions(agent, http::Then::End).await,
            Way::BusConnections => held::bus_connections(agent, MAX_HELD).await,
            Way::HttpConnections => held::http_connections(agent, MAX_HELD).await,
            Way::HalfFrames => held::half_frames(agent, MAX_HALVES).await,
            Way::HalfBodies => held::half_bodies(agent, MAX_HALVES).await,
            Way::BigMessages => bus::flood_slowly(agent, task).await,
            Way::Queue => bus::flood(agent, task, bus::Reading::Never, |n| frames::call(n, "queue", 0)).await,
            Way::Processes => bus::flood(agent, task, requests, |n| frames::call(n, &n.to_string(), 0)).await,
            Way::Running => bus::flood(agent, task, requests, |n| frames::call(n, "slow", 2_000)).await,
            Way::Lists => bus::flood(agent, task, requests, frames::list).await,
            Way::Listens => held::listens(agent, MAX_HELD).await,
            Way::Announcements => bus::flood(agent, task, requests, frames::announce).await,
            Way::BadFrames => bus::bad_frame(agent, task).await,
            Way::Cancels => bus::flood(agent, task, requests, frames::cancel).await,
            Way::SlowReader => bus::flood(agent, task, bus::Reading::Never, frames::list).await,
        }
    }
}
