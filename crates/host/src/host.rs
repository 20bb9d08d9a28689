//! What all parts of a host share: its servers, its catalog, its connection to the bus, and its limits.

use crate::approvals::Approvals;
use crate::caller::Caller;
use crate::callers::Callers;
use crate::catalog::Catalog;
use crate::catalog::names::Owners;
use crate::catalog::page::Viewer;
use crate::held::HeldCalls;
use crate::live_policy::LivePolicy;
use crate::orphans::Sightings;
use crate::outbox::Outbox;
use crate::pins::Pins;
use crate::running::RunningCalls;
use crate::server::Server;
use crate::tasks::TaskBoard;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_audit::AuditLog;
use toolbus_client::BrokerError;
use toolbus_journal::Journal;
use toolbus_mcp::HostReply;
use toolbus_policy::{Arguments, Item, PolicySet, Question};
use toolbus_upstream::{ConnectionOptions, HostConfig};

/// How a host is set up, with every limit by name.
#[derive(Clone)]
pub struct HostOptions {
    pub config: HostConfig,
    pub policy: Arc<LivePolicy>,
    pub connection: ConnectionOptions,
    pub limits: HostLimits,
    /// Which tools are the approved ones. Stays the same over all connections of a host.
    pub pins: Arc<Pins>,
    /// Where every decision and every call is written down.
    pub audit: Option<AuditLog>,
    /// Calls that wait for somebody to approve them, and what was decided. The same over all connections too.
    pub approvals: Arc<Approvals>,
    /// What makes a call's effect happen at most once, also over restarts. Without one, a call that comes again is known
    /// only while the host remembers it.
    pub journal: Option<Arc<Journal>>,
    /// Who tells whether callers are still there; the broker, unless somebody else is named.
    pub callers: Option<Arc<dyn Callers>>,
}

#[derive(Debug, Clone)]
pub struct HostLimits {
    /// Calls that run or wait; past it a call is refused.
    pub max_calls: usize,
    /// Client sessions that are remembered for each server, with a connection or without.
    pub max_remembered_sessions: usize,
    /// A session that was unused for so long gives way to a new one where there is no room for both.
    pub evicted_after: Duration,
    /// Calls that wait for a modern client to repeat them with what the server asked for.
    pub max_held_calls: usize,
    pub held_call_time: Duration,
    /// How long a request waits for a server that is just being started.
    pub start_patience: Duration,
    /// Items in each of a server's lists.
    pub max_items: usize,
    /// The shortest time between two readings of a server's lists.
    pub list_interval: Duration,
    /// The wait before a broken server is tried again, doubling up to the longest.
    pub backoff: Duration,
    pub longest_backoff: Duration,
    /// How long the first announcement waits for servers that are being started.
    pub start_quiet: Duration,
    /// The shortest time between two announcements.
    pub announce_interval: Duration,
    /// Calls that wait for approval; past it one more is refused.
    pub max_parked: usize,
    /// Of one agent.
    pub max_parked_per_agent: usize,
    /// Of their names and arguments together.
    pub max_parked_bytes: usize,
    /// Of one agent. Small enough for one reply, because whoever decides is shown all of it.
    pub max_parked_bytes_per_agent: usize,
    /// How long a call waits for approval if nothing else limits it.
    pub approval_time: Duration,
    /// How often its caller is told that it waits.
    pub approval_progress: Duration,
    /// Tasks that are kept, running or ended, until their time is over.
    pub max_tasks: usize,
    pub max_tasks_per_agent: usize,
    /// How long a call goes on whose caller is not connected any more; none means until its deadline.
    pub caller_grace: Option<Duration>,
    /// How long a caller is looked for before its call answers that of another: links break for a moment, and come back.
    pub caller_absence: Duration,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            max_calls: 4096,
            max_remembered_sessions: 4096,
            evicted_after: Duration::from_secs(10),
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
            max_parked_per_agent: 64,
            max_parked_bytes: 32 << 20,
            max_parked_bytes_per_agent: 8 << 20,
            approval_time: Duration::from_secs(24 * 3600),
            approval_progress: Duration::from_secs(15),
            max_tasks: 4096,
            max_tasks_per_agent: 256,
            caller_grace: Some(Duration::from_secs(120)),
            caller_absence: Duration::from_secs(2),
        }
    }
}

impl HostOptions {
    /// With the built-in policy: only the roles of the broker's own machine may use anything.
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            policy: LivePolicy::new(PolicySet::default()),
            connection: ConnectionOptions::default(),
            limits: HostLimits::default(),
            pins: Arc::new(Pins::in_memory()),
            audit: None,
            approvals: Arc::default(),
            journal: None,
            callers: None,
        }
    }
}

pub struct Host {
    pub options: HostOptions,
    pub outbox: Outbox,
    pub servers: Vec<Arc<Server>>,
    by_name: HashMap<String, usize>,
    pub catalog: Catalog,
    pub running: RunningCalls,
    pub sightings: Sightings,
    pub held: HeldCalls,
    pub task_board: TaskBoard,
    /// Held while a dead letter becomes a task.
    pub retrying: tokio::sync::Mutex<()>,
    /// What runs in this host; not only tasks in the sense of MCP.
    pub tasks: TaskTracker,
    pub shutdown: CancellationToken,
    /// Why the broker will never have this host.
    pub unwelcome: Unwelcome,
}

/// Set once, and then known to whoever waits for it.
#[derive(Default)]
pub struct Unwelcome {
    reason: OnceLock<BrokerError>,
    known: CancellationToken,
}

impl Unwelcome {
    pub fn set(&self, reason: BrokerError) {
        // The first reason counts.
        self.reason.set(reason).ok();
        self.known.cancel();
    }

    pub async fn wait(&self) -> BrokerError {
        self.known.cancelled().await;
        self.reason.get().cloned().unwrap_or(BrokerError::Closed)
    }
}

impl Host {
    pub fn new(outbox: Outbox, options: HostOptions, shutdown: CancellationToken) -> Arc<Self> {
        let configs: Vec<_> = options.config.servers.iter().filter(|server| !server.disabled).cloned().collect();
        let catalog = Catalog::new(&configs).with_pins(Arc::clone(&options.pins));
        let by_name = configs.iter().enumerate().map(|(index, config)| (config.name.clone(), index)).collect();
        let servers = configs.into_iter().enumerate().map(|(index, config)| Server::new(index, config)).collect();
        Arc::new(Self {
            outbox,
            servers,
            by_name,
            catalog,
            running: RunningCalls::default(),
            sightings: Sightings::default(),
            held: HeldCalls::new(options.limits.max_held_calls),
            task_board: TaskBoard::default(),
            retrying: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
            shutdown,
            unwelcome: Unwelcome::default(),
            options,
        })
    }

    pub fn server(&self, name: &str) -> Option<&Arc<Server>> {
        self.by_name.get(name).map(|index| &self.servers[*index])
    }

    /// Whether the role may know that there is such a server.
    pub fn may_see(&self, role: Option<&str>, server: &str) -> bool {
        let question = Question { role, server, item: Item::Server, arguments: Arguments::Unknown };
        self.options.policy.current().decide(&question).is_shown()
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

    /// The end of a request that is not journaled.
    pub async fn reply(&self, caller: &Caller, reply: &HostReply) {
        self.outbox.reply(&caller.request, reply).await;
        self.running.finish(caller);
    }
}
