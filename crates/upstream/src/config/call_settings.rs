//! Reliability settings of a server's calls: replay after an interruption, joining to an earlier call, behaviour while
//! the host is offline, and the circuit breaker.

use super::settings::Settings;
use std::collections::BTreeMap;
use std::time::Duration;
use toolbus_config::{ConfigError, Setting};

/// Settings per server, with overrides for single tools under the server's own names.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSettings {
    /// Whether calls may be replayed.
    pub replay: Replay,
    /// Overrides of `replay` by tool.
    pub tool_replay: BTreeMap<String, Replay>,
    /// Whether the server's `readOnlyHint` and `idempotentHint` are trusted like the operator's own settings.
    pub trust_hints: bool,
    /// When calls are joined to earlier ones.
    pub join: Join,
    /// Overrides of `join` by tool.
    pub tool_join: BTreeMap<String, Join>,
    /// How long after its end a call with an uncollected answer can still be joined. Within an hour, and the last 100,000
    /// settled messages, the broker can tell a collected answer from one that it never received; beyond that, an answer
    /// that is not pending counts as collected.
    pub join_window: Duration,
    /// What happens to calls while the host is offline.
    pub offline: Offline,
    /// Overrides of `offline` by tool.
    pub tool_offline: BTreeMap<String, Offline>,
    /// Settings of the circuit breaker.
    pub trip: TripSettings,
}

/// Whether a call may be run again if its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replay {
    /// The interrupted call is reported, not run again.
    #[default]
    Never,
    /// The tool is replay-safe: the call is run again.
    Safe,
}

/// When a call is answered with an earlier one of the same agent and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Join {
    /// Every call runs.
    Never,
    /// If the earlier caller is disconnected and its answer was not collected.
    #[default]
    Gone,
    /// Also while the earlier caller is still connected.
    Always,
}

/// What happens to a call while its host is offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offline {
    /// The call waits in the host's mailbox.
    #[default]
    Wait,
    /// The call fails immediately.
    Fail,
}

/// The circuit breaker: after `after` failures within `window`, a server gets no calls for `pause`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TripSettings {
    /// Number of failures that open the circuit breaker.
    pub after: usize,
    /// The period within which failures are counted.
    pub window: Duration,
    /// How long the circuit breaker stays open.
    pub pause: Duration,
}

impl Default for TripSettings {
    fn default() -> Self {
        Self { after: 5, window: Duration::from_secs(60), pause: Duration::from_secs(30) }
    }
}

impl Default for CallSettings {
    fn default() -> Self {
        Self {
            replay: Replay::default(),
            tool_replay: BTreeMap::new(),
            trust_hints: false,
            join: Join::default(),
            tool_join: BTreeMap::new(),
            join_window: Duration::from_secs(600),
            offline: Offline::default(),
            tool_offline: BTreeMap::new(),
            trip: TripSettings::default(),
        }
    }
}

impl CallSettings {
    /// The override for the tool. `None` if only the setting of the server applies.
    pub fn replay_of(&self, tool: &str) -> Option<Replay> {
        self.tool_replay.get(tool).copied()
    }

    /// The setting for the tool.
    pub fn join_of(&self, tool: &str) -> Join {
        self.tool_join.get(tool).copied().unwrap_or(self.join)
    }

    pub(super) fn read(settings: &Settings<'_>) -> Result<Self, ConfigError> {
        let defaults = Self::default();
        Ok(Self {
            replay: settings.choice("replay", Replay::EXPECTED, Replay::parse)?,
            tool_replay: settings.by_tool("tool_replay", |tool| tool.parse(Replay::EXPECTED, Replay::parse))?,
            trust_hints: settings.table.read("trust_hints", Setting::flag)?.unwrap_or(false),
            join: settings.choice("join", Join::EXPECTED, Join::parse)?,
            tool_join: settings.by_tool("tool_join", |tool| tool.parse(Join::EXPECTED, Join::parse))?,
            join_window: settings.duration("join_window")?.unwrap_or(defaults.join_window),
            offline: settings.choice("offline", Offline::EXPECTED, Offline::parse)?,
            tool_offline: settings.by_tool("tool_offline", |tool| tool.parse(Offline::EXPECTED, Offline::parse))?,
            trip: TripSettings {
                after: settings.table.read("trip_after", Setting::count)?.unwrap_or(defaults.trip.after),
                window: settings.duration("trip_window")?.unwrap_or(defaults.trip.window),
                pause: settings.duration("trip_pause")?.unwrap_or(defaults.trip.pause),
            },
        })
    }
}

impl Replay {
    const EXPECTED: &str = "\"never\" or \"safe\"";

    fn parse(word: &str) -> Option<Self> {
        match word {
            "never" => Some(Self::Never),
            "safe" => Some(Self::Safe),
            _ => None,
        }
    }
}

impl Join {
    const EXPECTED: &str = "\"gone\", \"always\" or \"never\"";

    fn parse(word: &str) -> Option<Self> {
        match word {
            "gone" => Some(Self::Gone),
            "always" => Some(Self::Always),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

impl Offline {
    const EXPECTED: &str = "\"wait\" or \"fail\"";

    fn parse(word: &str) -> Option<Self> {
        match word {
            "wait" => Some(Self::Wait),
            "fail" => Some(Self::Fail),
            _ => None,
        }
    }
}
