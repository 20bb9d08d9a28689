//! How far a log was shipped, in a file beside the log.

use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use toolbus_audit::Cursor;
use toolbus_base::replace_file;

const STATE_FILE: &str = "ship.json";

/// The progress of a shipper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShipState {
    /// Where lines are shipped to.
    pub target: String,
    /// The end of the lines that the target has.
    pub cursor: Cursor,
    /// When lines were last shipped, in milliseconds since 1970.
    pub shipped_ms: Option<u64>,
    /// Number of lines that rotation removed before they were shipped.
    pub missed: u64,
    /// Set while the target can't be reached.
    pub outage: Option<Outage>,
}

/// Why and since when lines are not shipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// In milliseconds since 1970.
    pub since_ms: u64,
    /// The first error.
    pub error: String,
}

impl ShipState {
    /// Reads the state of a log's folder. Returns `None` if nothing was shipped from it, or the file is damaged.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&toolbus_base::read_private(&folder.join(STATE_FILE)).ok()?).ok()
    }

    /// The state for this target. Another target gets the lines from the start of the log.
    pub(crate) fn of(folder: &Path, target: &Target) -> Self {
        let target = target.to_string();
        let known = Self::read(folder).filter(|state| state.target == target);
        known.unwrap_or(Self { target, cursor: Cursor::default(), shipped_ms: None, missed: 0, outage: None })
    }

    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        replace_file(&folder.join(STATE_FILE), serde_json::to_string(self)?.as_bytes())
    }
}
