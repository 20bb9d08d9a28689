//! The eight MCP log levels, in order. A modern request carries a level; a legacy session has one.

use toolbus_mcp::Members;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LogLevel {
    const ALL: [(Self, &str); 8] = [
        (Self::Debug, "debug"),
        (Self::Info, "info"),
        (Self::Notice, "notice"),
        (Self::Warning, "warning"),
        (Self::Error, "error"),
        (Self::Critical, "critical"),
        (Self::Alert, "alert"),
        (Self::Emergency, "emergency"),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(level, _)| *level)
    }

    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The level named by a JSON string.
    pub fn of_raw(value: &toolbus_mcp::Raw) -> Option<Self> {
        serde_json::from_str::<String>(value.get()).ok().as_deref().and_then(Self::parse)
    }

    /// Whether a `notifications/message` reaches this level.
    pub fn passes(self, message: Option<&toolbus_mcp::Raw>) -> bool {
        let level = Members::of(message).ok().and_then(|members| members.get("level").and_then(Self::of_raw));
        level.is_none_or(|level| level >= self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_below_the_level_are_dropped() {
        let message = toolbus_mcp::raw(&serde_json::json!({"level": "warning", "data": 1}));
        assert!(LogLevel::Info.passes(Some(&message)));
        assert!(LogLevel::Warning.passes(Some(&message)));
        assert!(!LogLevel::Error.passes(Some(&message)));
        for (level, name) in LogLevel::ALL {
            assert_eq!((level.as_str(), LogLevel::parse(name)), (name, Some(level)));
        }
    }
}
