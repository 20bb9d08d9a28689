//! The two eras of MCP. A legacy session begins with `initialize`; in the modern era every request carries its protocol
//! version and the client's capabilities.

use crate::{Raw, meta};
use serde::{Deserialize, Serialize};

/// Protocol versions of the legacy era, oldest first.
pub const LEGACY_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The latest version of the legacy era.
pub const LATEST_LEGACY: &str = "2025-11-25";
/// Protocol versions of the modern era.
pub const MODERN_VERSIONS: &[&str] = &[MODERN_VERSION];
/// The latest version of the modern era.
pub const MODERN_VERSION: &str = "2026-07-28";

/// An era of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// Versions up to 2025-11-25, with sessions.
    Legacy,
    /// Versions from 2026-07-28 on, without sessions.
    Modern,
}

impl Era {
    /// The era of a request. Only modern requests carry their version in `_meta`.
    pub fn of_params(params: Option<&Raw>) -> Self {
        if meta::get(params, meta::PROTOCOL_VERSION).is_some() { Self::Modern } else { Self::Legacy }
    }

    /// The era of a protocol version, if the version is known.
    pub fn of_version(version: &str) -> Option<Self> {
        if LEGACY_VERSIONS.contains(&version) {
            Some(Self::Legacy)
        } else if MODERN_VERSIONS.contains(&version) {
            Some(Self::Modern)
        } else {
            None
        }
    }

    /// The name in lower case, as it is serialized.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}
