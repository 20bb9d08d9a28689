//! Parameters of a run, drawn before the first step.

use crate::planted::Planted;
use crate::simulation::scenario::pick;
use std::num::NonZeroU32;
use std::time::Duration;
use toolbus_call::{JoinMode, Limit, MachineOptions, ServerOptions, TripSettings};
use toolbus_engine::EngineOptions;
use toolbus_journal::{JournalOptions, Limits, LogOptions};
use toolbus_policy::{LimitKind, Rate};
use toolbus_store::StoreOptions;
use toolbus_store::sim_disk::Rng;

#[derive(Debug, Clone)]
pub struct Plan {
    pub engine: EngineOptions,
    pub store: StoreOptions,
    pub journal: JournalOptions,
    pub machine: MachineOptions,
    /// Whether the broker has `follow`; an older one is asked from time to time.
    pub follows: bool,
    pub planted: Option<Planted>,
    pub agents: usize,
    pub hosts: usize,
    pub steps: u64,
    /// Number of distinct arguments: the fewer, the more calls equal an earlier one.
    pub arguments: u64,
    /// Percentage of calls with a deadline.
    pub deadlines: u64,
    /// Percentage of calls that are tasks.
    pub tasks: u64,
    /// Percentage of calls that fail fast while their host is away.
    pub fail_fast: u64,
    /// Percentage of answered calls that a client makes again at a new worker.
    pub made_again: u64,
    /// Percentage of calls that belong to a session.
    pub sessions: u64,
    pub join: JoinMode,
    /// The server's time limit for a call.
    pub timeout: u64,
    pub limits: Vec<Limit>,
    pub time_limit: Option<u64>,
    /// A tool needs approval.
    pub approvals: bool,
    /// Calls of one tool run one at a time.
    pub exclusive: bool,
    /// Percentage of runs in which the server never answers.
    pub hanging: u64,
    /// Percentage of runs in which the server dies.
    pub dying: u64,
    /// Percentage of requests that a connection does not take, or that find no connection.
    pub unreachable: u64,
    /// Weight of the operations of the broker's disk: a slow one lets calls run before they are written.
    pub broker_disk: u64,
    /// Multiplies the weights of crashes and other faults.
    pub fault_rate: u64,
    /// Multiplies the weights of cancels, panics and changes of the policy.
    pub unrest: u64,
    /// Hosts lose their state folders, or there are two hosts of one name.
    pub amnesia: bool,
    /// Bits of journals flip.
    pub corruption: bool,
    pub clock_jumps: bool,
    /// Percentage of waits that take seconds.
    pub long_waits: u64,
    /// Enables a replay-safe tool that mostly crashes its host.
    pub host_crashing_tool: bool,
}

/// Mostly the default.
const JOIN_MODES: [JoinMode; 8] = {
    let gone = JoinMode::Gone;
    [gone, gone, gone, gone, gone, gone, JoinMode::Never, JoinMode::Always]
};

impl Plan {
    pub fn draw(rng: &mut Rng, planted: Option<Planted>) -> Self {
        let engine = EngineOptions {
            // The broker's own dead-lettering of requests is not simulated here.
            max_attempts: 1_000_000,
            host_max_attempts: 1_000_000,
            linger: rng.below(5),
            lazy: *pick(rng, &[0, 3, 20, 200]),
            history_age: u64::MAX,
            fingerprint_seed: rng.next_u64(),
            host_window_messages: *pick(rng, &[2, 8, 1000]),
            window_messages: *pick(rng, &[2, 8, 1000]),
            planted: planted.and_then(Planted::in_engine),
            ..EngineOptions::default()
        };
        let store = StoreOptions {
            segment_bytes: *pick(rng, &[2 << 10, 16 << 10]),
            history_age: u64::MAX,
            checksum_seed: rng.next_u64(),
            ..StoreOptions::default()
        };
        let sync_results = rng.chance(30);
        let amnesia = rng.chance(30);
        let timeout = *pick(rng, &[200, 2_000, 8_000, 8_000]);
        Self {
            engine,
            store,
            journal: draw_journal(rng, planted, sync_results),
            machine: draw_machine(rng, planted, sync_results),
            follows: rng.chance(85),
            planted,
            agents: 1 + rng.below(3) as usize,
            hosts: 1 + rng.below(2) as usize,
            steps: 300 + rng.below(1_700),
            arguments: *pick(rng, &[1, 2, 4, 50, 50]),
            deadlines: *pick(rng, &[0, 10, 40]),
            // A task lives in its journal, so its guarantees end with it.
            tasks: if amnesia { 0 } else { *pick(rng, &[0, 15]) },
            fail_fast: *pick(rng, &[0, 30, 90]),
            made_again: *pick(rng, &[0, 5, 60]),
            sessions: *pick(rng, &[0, 50, 100]),
            join: *pick(rng, &JOIN_MODES),
            timeout,
            limits: draw_limits(rng),
            time_limit: rng.chance(15).then_some(*pick(rng, &[30, 300])),
            approvals: rng.chance(25),
            exclusive: rng.chance(20),
            hanging: *pick(rng, &[0, 0, 10, 60]),
            dying: *pick(rng, &[0, 4, 20, 70]),
            unreachable: *pick(rng, &[0, 4, 15]),
            broker_disk: *pick(rng, &[500, 500, 500, 20]),
            fault_rate: if amnesia { *pick(rng, &[3, 10]) } else { *pick(rng, &[0, 2, 5, 12]) },
            unrest: *pick(rng, &[0, 2, 10]),
            amnesia,
            corruption: rng.chance(15),
            clock_jumps: rng.chance(30),
            long_waits: *pick(rng, &[2, 20]),
            host_crashing_tool: rng.chance(10),
        }
    }
}

fn draw_journal(rng: &mut Rng, planted: Option<Planted>, sync_results: bool) -> JournalOptions {
    let log = LogOptions {
        segment_bytes: *pick(rng, &[150, 300, 1000, 8000]),
        checksum_seed: rng.next_u64(),
        planted: planted.and_then(Planted::in_journal),
    };
    JournalOptions {
        log,
        // No call is forgotten during a run, even if the clock jumps.
        limits: Limits { keep_ms: u64::MAX / 2, ..Limits::default() },
        max_bytes: u64::MAX,
        compact_after_ms: Some(*pick(rng, &[20, 50, 1000, u64::MAX])),
        sync_results,
    }
}

fn draw_machine(rng: &mut Rng, planted: Option<Planted>, sync_results: bool) -> MachineOptions {
    let servers = 1 + rng.below(2);
    let trip = TripSettings { after: *pick(rng, &[2, 5, 1000]), window: 200, pause: 100 };
    let server = |number: u64, max_concurrency| ServerOptions { name: format!("s{number}"), max_concurrency, trip };
    MachineOptions {
        servers: (0..servers).map(|number| server(number, *pick(rng, &[1, 2, 100]))).collect(),
        max_calls: *pick(rng, &[16, 4096]),
        max_tasks: *pick(rng, &[4, 4096, 4096]),
        max_tasks_per_agent: *pick(rng, &[2, 256, 256]),
        max_attempts: 3,
        max_connections: 2,
        caller_grace: *pick(rng, &[None, Some(100), Some(100), Some(1_000)]),
        caller_absence: *pick(rng, &[0, 10, 60]),
        approval_time: *pick(rng, &[100, 2_000]),
        wait_limit: *pick(rng, &[100, 2_000]),
        cancel_grace: *pick(rng, &[0, 20, 100]),
        sync_results,
        journal_damaged: false,
        planted: planted.and_then(Planted::in_machine),
    }
}

fn draw_limits(rng: &mut Rng) -> Vec<Limit> {
    let number = |rng: &mut Rng, most| NonZeroU32::new(1 + rng.below(most) as u32);
    let concurrency = if rng.chance(30) { number(rng, 3) } else { None };
    let rate = if rng.chance(15) { number(rng, 10) } else { None };
    let rate = rate.map(|count| Rate { count, per: Duration::from_millis(300) });
    let limit = Limit { kind: LimitKind::Role("role".into()), rate, concurrency };
    if limit.rate.is_some() || limit.concurrency.is_some() { vec![limit] } else { Vec::new() }
}
