//! The state that all parts of a host share: servers, catalog, broker connection and limits.

use crate::agent_ends::Generations;
use crate::approvals::Approvals;
use crate::callers::Callers;
use crate::calls::{Calls, PendingCalls};
use crate::catalog::Catalog;
use crate::catalog::names::Owners;
use crate::catalog::page::Viewer;
use crate::live_policy::LivePolicy;
use crate::outbox::Outbox;
use crate::pins::Pins;
use crate::server::Server;
use crate::tasks::TaskMemory;
use hashbrown::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_audit::AuditLog;
use toolbus_base::Share;
use toolbus_call::{MachineOptions, ServerOptions, TripSettings};
use toolbus_client::BrokerError;
use toolbus_journal::Journal;
use toolbus_policy::{Arguments, Item, PolicySet, Question};
use toolbus_upstream::{ConnectionOptions, HostConfig};

/// The configuration of a host.
#[derive(Clone)]
pub struct HostOptions {
    /// The servers and their settings.
    pub config: HostConfig,
    /// The policy in force, which can be replaced at runtime.
    pub policy: Arc<LivePolicy>,
    /// Options for connections to servers.
    pub connection: ConnectionOptions,
    /// The limits of the host.
    pub limits: HostLimits,
    /// The approved tool definitions, shared by all connections of the host.
    pub pins: Arc<Pins>,
    /// The audit log of decisions and calls.
    pub audit: Option<AuditLog>,
    /// Calls that wait for approval and the decisions about them, shared by all connections of the host.
    pub approvals: Arc<Approvals>,
    /// The call journal, which deduplicates calls so that each has at most one effect: across restarts if it is on disk,
    /// else within this process.
    pub journal: Arc<Journal>,
    /// The file that remembers the lists of the servers for the next start.
    pub catalog_file: Option<PathBuf>,
    /// Reports whether callers are connected; `None` asks the broker.
    pub callers: Option<Arc<dyn Callers>>,
    /// The pool that the host asks to join.
    pub pool: Option<String>,
}

/// Limits and timeouts of a host.
#[derive(Debug, Clone)]
pub struct HostLimits {
    /// Maximum calls that run or wait; further calls are refused.
    pub max_calls: usize,
    /// Maximum client sessions remembered per server, with or without a connection.
    pub max_remembered_sessions: usize,
    /// Minimum idle time before a session's connection may be closed to make room for another session.
    pub evicted_after: Duration,
    /// How long a call waits for a session slot of its server (`max_sessions`) before it is refused.
    pub slot_patience: Duration,
    /// Maximum calls to legacy servers that wait for their modern client to answer a request of the server.
    pub max_held_calls: usize,
    /// How long such a call waits for its client.
    pub held_call_time: Duration,
    /// How long a request waits for a server that is starting.
    pub start_patience: Duration,
    /// Maximum items in each list of a server.
    pub max_items: usize,
    /// Minimum time between two reads of a server's lists.
    pub list_interval: Duration,
    /// Delay before a failed server is started again; it doubles up to `longest_backoff`.
    pub backoff: Duration,
    /// Maximum delay before a failed server is started again.
    pub longest_backoff: Duration,
    /// How long a worker of the original waits for servers that are starting: it asks for the tools only once.
    pub start_quiet: Duration,
    /// Minimum time between two announcements.
    pub announce_interval: Duration,
    /// Maximum calls that wait for approval, of which an agent has its share; further ones are refused.
    pub max_parked: usize,
    /// Maximum total size of the params of calls that wait for approval.
    pub max_parked_bytes: usize,
    /// The same per agent. It must fit into one reply, because the approver is shown all of it.
    pub max_parked_bytes_per_agent: usize,
    /// How long a call waits for approval if no deadline ends it earlier.
    pub approval_time: Duration,
    /// Interval of the progress notifications to the caller of a call that waits for approval.
    pub approval_progress: Duration,
    /// Maximum tasks, running or ended, until they expire.
    pub max_tasks: usize,
    /// Maximum tasks per agent.
    pub max_tasks_per_agent: usize,
    /// How long a call continues after its caller disconnected; `None`: until its deadline.
    pub caller_grace: Option<Duration>,
    /// How long a caller must stay disconnected before another call may join its call; connections break for a moment
    /// and recover.
    pub caller_absence: Duration,
    /// Size of the entries that wait for the call journal at which requests wait in the mailbox, and answers at their
    /// servers. Requests that were taken from the mailbox before may still add their entries.
    pub max_journal_backlog_bytes: usize,
    /// How long running calls may take to end at shutdown, before their servers are closed.
    pub drain: Duration,
    /// How long servers, and calls that end with them, may take at shutdown after the drain.
    pub close: Duration,
}

impl HostLimits {
    /// How long [`run_host`](crate::run_host) takes at most to return once its token is cancelled: the drain, the end of
    /// the servers, and the last replies on their way to the broker. A broker in the same process has to run that long.
    pub fn stop(&self) -> Duration {
        self.drain + self.close + toolbus_client::CLOSE_LIMIT
    }
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            max_calls: 4096,
            max_remembered_sessions: 4096,
            evicted_after: Duration::from_secs(10),
            slot_patience: Duration::from_secs(30),
            max_held_calls: 256,
            held_call_time: Duration::from_secs(600),
            start_patience: Duration::from_secs(60),
            max_items: 10_000,
            list_interval: Duration::from_secs(1),
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(60),
            start_quiet: Duration::from_secs(5),
            announce_interval: Duration::from_millis(250),
            max_parked: 256,
            max_parked_bytes: 32 << 20,
            max_parked_bytes_per_agent: 8 << 20,
            approval_time: Duration::from_secs(24 * 3600),
            approval_progress: Duration::from_secs(15),
            max_tasks: 4096,
            max_tasks_per_agent: 256,
            caller_grace: Some(Duration::from_secs(120)),
            caller_absence: Duration::from_secs(2),
            max_journal_backlog_bytes: 64 << 20,
            drain: Duration::from_secs(10),
            close: Duration::from_secs(10),
        }
    }
}

impl HostOptions {
    /// Options with the built-in policy, which allows only the roles of the broker's own machine.
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            policy: LivePolicy::new(PolicySet::default()),
            connection: ConnectionOptions::default(),
            limits: HostLimits::default(),
            pins: Arc::new(Pins::in_memory()),
            audit: None,
            approvals: Arc::default(),
            journal: Arc::new(Journal::in_memory().expect("a journal in memory can be opened")),
            catalog_file: None,
            callers: None,
            pool: None,
        }
    }
}

pub struct Host {
    pub options: HostOptions,
    pub outbox: Outbox,
    pub servers: Vec<Arc<Server>>,
    by_name: HashMap<String, usize>,
    pub catalog: Catalog,
    pub calls: Arc<Calls>,
    pub pending_calls: PendingCalls,
    pub generations: Arc<Generations>,
    pub task_memory: TaskMemory,
    /// Serialises retries of dead letters.
    pub retrying: tokio::sync::Mutex<()>,
    /// Tracks the tokio tasks of this host (not MCP tasks).
    pub tracker: TaskTracker,
    /// Counts the requests that are not answered yet; drained at shutdown.
    pub jobs: TaskTracker,
    /// No call is started any more: requests that were not started stay in the mailbox for the next host.
    pub draining: CancellationToken,
    /// The drain is over: servers are closed, and what still runs ends with them.
    pub shutdown: CancellationToken,
    /// All calls have ended.
    pub stopped: CancellationToken,
    /// Set when the broker permanently refuses this host.
    pub rejection: Rejection,
}

/// A reason that is set once and wakes all waiters.
#[derive(Default)]
pub struct Rejection {
    reason: OnceLock<BrokerError>,
    known: CancellationToken,
}

impl Rejection {
    pub fn set(&self, reason: BrokerError) {
        // Only the first reason is kept.
        self.reason.set(reason).ok();
        self.known.cancel();
    }

    pub async fn wait(&self) -> BrokerError {
        self.known.cancelled().await;
        self.reason.get().cloned().unwrap_or(BrokerError::Closed)
    }
}

impl Host {
    pub fn new(outbox: Outbox, options: HostOptions, draining: CancellationToken) -> Arc<Self> {
        let configs: Vec<_> = options.config.servers.iter().filter(|server| !server.disabled).cloned().collect();
        let catalog = Catalog::new(&configs).with_pins(Arc::clone(&options.pins));
        let catalog = catalog.with_remembered(options.catalog_file.as_deref());
        options.pins.set_configured(configs.iter().map(|config| config.name.as_str()));
        let by_name = configs.iter().enumerate().map(|(index, config)| (config.name.clone(), index)).collect();
        let servers: Vec<_> =
            configs.into_iter().enumerate().map(|(index, config)| Server::new(index, config)).collect();
        Arc::new(Self {
            outbox,
            calls: Arc::new(Calls::new(machine_options(&options, &servers), options.limits.max_journal_backlog_bytes)),
            servers,
            by_name,
            catalog,
            pending_calls: PendingCalls::new(options.limits.max_held_calls),
            generations: Arc::default(),
            task_memory: TaskMemory::default(),
            retrying: tokio::sync::Mutex::default(),
            tracker: TaskTracker::new(),
            jobs: TaskTracker::new(),
            draining,
            shutdown: CancellationToken::new(),
            stopped: CancellationToken::new(),
            rejection: Rejection::default(),
            options,
        })
    }

    pub fn server(&self, name: &str) -> Option<&Arc<Server>> {
        self.by_name.get(name).map(|index| &self.servers[*index])
    }

    /// Whether the role may know that the server exists.
    pub fn may_see(&self, role: Option<&str>, server: &str) -> bool {
        let question = Question { role, server, item: Item::Server, arguments: Arguments::Unknown };
        self.options.policy.current().decide(&question).is_shown()
    }

    /// How much of the host an agent of the role may use, if it is set.
    pub fn share_of(&self, role: Option<&str>) -> Option<Share> {
        self.options.policy.current().share(role)
    }

    pub fn viewer<'a>(
        &'a self,
        role: Option<&'a str>,
        policy: &'a PolicySet,
        owners: &'a Owners,
        server: &'a Server,
    ) -> Viewer<'a> {
        Viewer {
            role,
            policy,
            owners,
            server: &server.config.name,
            index: server.index,
            prefix: server.config.prefix.as_deref(),
            pins: &self.options.pins,
            pin: server.config.pin,
            era: None,
        }
    }
}

/// What the call machine has to know about the configuration.
fn machine_options(options: &HostOptions, servers: &[Arc<Server>]) -> MachineOptions {
    let limits = &options.limits;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let server = |server: &Arc<Server>| {
        let (config, trip) = (&server.config, server.config.calls.trip);
        let trip = TripSettings { after: trip.after, window: millis(trip.window), pause: millis(trip.pause) };
        ServerOptions { name: config.name.clone(), max_concurrency: config.max_concurrency.max(1), trip }
    };
    MachineOptions {
        servers: servers.iter().map(server).collect(),
        max_calls: limits.max_calls,
        max_tasks: limits.max_tasks,
        max_tasks_per_agent: limits.max_tasks_per_agent,
        caller_grace: limits.caller_grace.map(millis),
        caller_absence: millis(limits.caller_absence),
        approval_time: millis(limits.approval_time),
        sync_results: options.journal.syncs_results(),
        journal_damaged: options.journal.recovery().is_damaged(),
        ..MachineOptions::default()
    }
}

/// Waits until that time; forever without one.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
