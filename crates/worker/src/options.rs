//! The limits and times of a worker, in one place.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The one host to use; all that the credential allows if absent.
    pub host: Option<String>,
    /// How long a call may take, waiting for an absent host included.
    pub call_deadline: Duration,
    /// How long a `subscriptions/listen` lives before it is ended gracefully.
    pub listen_deadline: Duration,
    /// How long a merged list waits for one server before it is answered from the manifest.
    pub list_patience: Duration,
    /// How long a modern client that knows tasks waits for a tool before it gets a task instead. Without it only calls to
    /// hosts that are away become tasks.
    pub task_after: Option<Duration>,
    /// Calls to a host that is away are refused at once instead of waiting for it.
    pub fail_fast: bool,
    /// How often a waiting client is told that the host is away.
    pub away_progress: Duration,
    /// Calls of one client under way.
    pub max_calls: usize,
    /// Unanswered requests of servers to one client.
    pub max_questions: usize,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            host: None,
            call_deadline: Duration::from_secs(3600),
            listen_deadline: Duration::from_secs(24 * 3600),
            list_patience: Duration::from_secs(10),
            task_after: None,
            fail_fast: false,
            away_progress: Duration::from_secs(15),
            max_calls: 1024,
            max_questions: 256,
        }
    }
}
