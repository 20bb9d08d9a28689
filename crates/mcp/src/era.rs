//! The two eras of MCP. In the legacy era a session begins with `initialize`; in the modern era every request says for
//! itself which version it speaks and what its client can do.

use crate::members::Members;
use crate::meta;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Oldest first.
pub const LEGACY_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
pub const LATEST_LEGACY: &str = "2025-11-25";
pub const MODERN_VERSIONS: &[&str] = &[MODERN_VERSION];
pub const MODERN_VERSION: &str = "2026-07-28";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    /// The era that a request's own words tell: only modern ones carry their version in `_meta`.
    pub fn of_params(params: Option<&RawValue>) -> Self {
        let modern = || {
            let members = Members::of(params).ok()?;
            let meta = Members::of(members.get(meta::META)).ok()?;
            meta.contains(meta::PROTOCOL_VERSION).then_some(())
        };
        if modern().is_some() { Self::Modern } else { Self::Legacy }
    }

    pub fn of_version(version: &str) -> Option<Self> {
        if LEGACY_VERSIONS.contains(&version) {
            Some(Self::Legacy)
        } else if MODERN_VERSIONS.contains(&version) {
            Some(Self::Modern)
        } else {
            None
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}
