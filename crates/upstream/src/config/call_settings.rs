//! What a host may do with a server's calls when something goes wrong: run one again, join one to an earlier one, let one
//! wait for a host that is away, or keep calls from a server that fails.

use super::error::ConfigError;
use super::settings::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// Per server; single tools, under the server's own names, may differ.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSettings {
    pub replay: Replay,
    pub tool_replay: BTreeMap<String, Replay>,
    /// Whether the server's `readOnlyHint` and `idempotentHint` count as the operator's word.
    pub trust_hints: bool,
    pub join: Join,
    pub tool_join: BTreeMap<String, Join>,
    /// How long after its end a call whose answer nobody collected is still joined.
    pub join_window: Duration,
    pub offline: Offline,
    pub tool_offline: BTreeMap<String, Offline>,
    pub trip: TripSettings,
}

/// Whether a call may be run once more when nobody knows if it had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replay {
    #[default]
    Never,
    Safe,
}

/// When a call is answered with an earlier one of the same agent and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Join {
    Never,
    /// Its caller is gone, and nobody has got its answer.
    #[default]
    Gone,
    /// Also while its caller is still there.
    Always,
}

/// What becomes of a call while its host is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offline {
    #[default]
    Wait,
    Fail,
}

/// After so many failures within that time, a server gets no calls for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TripSettings {
    pub after: usize,
    pub window: Duration,
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
    /// What was said about that tool; nothing where only the server's word counts.
    pub fn replay_of(&self, tool: &str) -> Option<Replay> {
        self.tool_replay.get(tool).copied()
    }

    pub fn join_of(&self, tool: &str) -> Join {
        self.tool_join.get(tool).copied().unwrap_or(self.join)
    }

    pub(super) fn read(settings: &mut Settings<'_>) -> Result<Self, ConfigError> {
        let usual = Self::default();
        Ok(Self {
            replay: settings.choice("replay", Replay::EXPECTED, Replay::parse)?,
            tool_replay: settings.choices("tool_replay", Replay::EXPECTED, Replay::parse)?,
            trust_hints: settings.flag("trust_hints")?.unwrap_or(false),
            join: settings.choice("join", Join::EXPECTED, Join::parse)?,
            tool_join: settings.choices("tool_join", Join::EXPECTED, Join::parse)?,
            join_window: settings.duration("join_window")?.unwrap_or(usual.join_window),
            offline: settings.choice("offline", Offline::EXPECTED, Offline::parse)?,
            tool_offline: settings.choices("tool_offline", Offline::EXPECTED, Offline::parse)?,
            trip: TripSettings {
                after: settings.count("trip_after")?.unwrap_or(usual.trip.after),
                window: settings.duration("trip_window")?.unwrap_or(usual.trip.window),
                pause: settings.duration("trip_pause")?.unwrap_or(usual.trip.pause),
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
