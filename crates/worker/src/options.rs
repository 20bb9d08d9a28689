//! The limits and timeouts of a worker.

use std::time::Duration;

/// The configuration of a [`Worker`](crate::Worker).
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The only host to use. `None`: all hosts that the credential allows.
    pub host: Option<String>,
    /// The deadline of a call, including the time it is queued for an absent host.
    pub call_deadline: Duration,
    /// The maximum duration of a `subscriptions/listen`. After it the subscription is ended with a result.
    pub listen_deadline: Duration,
    /// How long a merged list waits for one server before the server's part is taken from its manifest.
    pub list_patience: Duration,
    /// How long a request to all hosts or servers, such as for their tasks, waits for each of them.
    pub gather_patience: Duration,
    /// How long a modern client that declares tasks waits for a tool before the call becomes a task. `None`: only calls
    /// to absent hosts become tasks.
    pub task_after: Option<Duration>,
    /// Reject calls to an absent host immediately instead of queueing them.
    pub fail_fast: bool,
    /// How long the call to a member of a pool waits for the member to come back, before it is withdrawn and another member may
    /// run it. For as long a session keeps a member that is away.
    pub pool_grace: Duration,
    /// For how long after the start of the worker the members of a pool are asked whether a call repeats one of an earlier
    /// worker. `None`: always.
    pub asks_for: Option<Duration>,
    /// Interval of the progress notifications of a call that is queued for an absent host.
    pub away_progress: Duration,
    /// Maximum concurrent calls per client.
    pub max_calls: usize,
    /// Maximum pending client requests (elicitation, sampling) per client.
    pub max_questions: usize,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            host: None,
            call_deadline: Duration::from_secs(3600),
            listen_deadline: Duration::from_secs(24 * 3600),
            list_patience: Duration::from_secs(1),
            gather_patience: Duration::from_secs(10),
            task_after: None,
            fail_fast: false,
            pool_grace: Duration::from_secs(15),
            asks_for: None,
            away_progress: Duration::from_secs(15),
            max_calls: 1024,
            max_questions: 256,
        }
    }
}
