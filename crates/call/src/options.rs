//! Limits and timeouts of the machine, in milliseconds.

use crate::circuit_breaker::TripSettings;
use crate::event::Millis;
use crate::planted::PlantedBug;

/// The configuration of a [`crate::CallMachine`].
#[derive(Debug, Clone)]
pub struct MachineOptions {
    /// The servers of the host.
    pub servers: Vec<ServerOptions>,
    /// Maximum calls in progress; one agent may have a quarter of them.
    pub max_calls: usize,
    /// Maximum tasks until they expire.
    pub max_tasks: usize,
    /// Maximum tasks per agent.
    pub max_tasks_per_agent: usize,
    /// Maximum attempts of a replay-safe call before it is dead-lettered.
    pub max_attempts: u32,
    /// Maximum connections on which a request is tried that certainly did not reach the server.
    pub max_connections: u32,
    /// How long a call continues after its caller disconnected; `None`: until its deadline.
    pub caller_grace: Option<Millis>,
    /// How long a caller must stay disconnected before another call may join its call.
    pub caller_absence: Millis,
    /// How long a call waits for approval if no deadline ends it earlier.
    pub approval_time: Millis,
    /// How long a call waits for its connection, a session slot or the broker's answer, at most.
    pub wait_limit: Millis,
    /// How long to wait for the answer of a cancelled call. Most servers never send one.
    pub cancel_grace: Millis,
    /// Whether an answer must be durable before it is sent, not only written.
    pub sync_results: bool,
    /// The journal lost entries: a call that it doesn't know may have been started.
    pub journal_damaged: bool,
    /// The defect to plant. Has no effect without the feature `planted`.
    pub planted: Option<PlantedBug>,
}

/// A server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Its name, for errors.
    pub name: String,
    /// Maximum concurrent calls.
    pub max_concurrency: usize,
    /// When the circuit breaker opens.
    pub trip: TripSettings,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            max_calls: 4096,
            max_tasks: 4096,
            max_tasks_per_agent: 256,
            max_attempts: 3,
            max_connections: 2,
            caller_grace: Some(120_000),
            caller_absence: 2_000,
            approval_time: 24 * 3_600_000,
            wait_limit: 600_000,
            cancel_grace: 1_000,
            sync_results: false,
            journal_damaged: false,
            planted: None,
        }
    }
}
