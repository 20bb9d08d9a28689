//! What a host offers, as it announces it: one card with everything a worker needs to show the tools of a host that is
//! away, and to know how to reach them.

use crate::{Era, ListKind, Raw};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Card {
    /// In the order of the host's configuration: where two servers have a tool of the same name, the earlier keeps it.
    pub servers: Vec<ServerCard>,
    /// What the operator should know: collisions, names that are too long. Sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerCard {
    pub name: String,
    pub state: ServerState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
    /// The eras in which the server can be spoken to.
    #[serde(default)]
    pub eras: Vec<Era>,
    /// The result of `initialize`, as the server gave it to the host itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Raw>,
    /// The result of `server/discover`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discover: Option<Raw>,
    /// Items under the names that workers see, without those that the role may not use.
    #[serde(default)]
    pub tools: Vec<Raw>,
    #[serde(default)]
    pub resources: Vec<Raw>,
    #[serde(default)]
    pub resource_templates: Vec<Raw>,
    #[serde(default)]
    pub prompts: Vec<Raw>,
    /// What is not to wait for the host while it is away.
    #[serde(default, skip_serializing_if = "FailFast::is_empty")]
    pub fail_fast: FailFast,
    /// What is never to be answered with what came of another call.
    #[serde(default, skip_serializing_if = "Alone::is_empty")]
    pub alone: Alone,
}

/// Calls that always run, also if the same one was made before and its answer was lost: they may run twice, or the host's
/// configuration says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    /// Every call, but of `joined` tools.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Calls of these tools, under the names that workers see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools whose calls can be joined although others can't.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<String>,
}

impl Alone {
    pub fn is_empty(&self) -> bool {
        !self.all && self.tools.is_empty()
    }

    pub fn applies_to(&self, tool: &str) -> bool {
        let named = |tools: &[String]| tools.iter().any(|name| name == tool);
        if self.all { !named(&self.joined) } else { named(&self.tools) }
    }
}

/// Calls that fail at once while their host is away, because the host's configuration says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailFast {
    /// Every call, but of `waiting` tools.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Calls of these tools, under the names that workers see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools whose calls wait although others don't.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
}

impl FailFast {
    pub fn is_empty(&self) -> bool {
        !self.all && self.tools.is_empty()
    }

    /// Whether a call of that tool, or one that names none, fails at once.
    pub fn applies_to(&self, tool: Option<&str>) -> bool {
        let named = |tools: &[String]| tool.is_some_and(|tool| tools.iter().any(|name| name == tool));
        if self.all { !named(&self.waiting) } else { named(&self.tools) }
    }
}

impl ServerCard {
    pub fn items(&self, kind: ListKind) -> &[Raw] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.resource_templates,
            ListKind::Prompts => &self.prompts,
        }
    }

    pub fn items_mut(&mut self, kind: ListKind) -> &mut Vec<Raw> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.resource_templates,
            ListKind::Prompts => &mut self.prompts,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    Starting,
    Up,
    Down,
}

/// Why a server is down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    pub reason: String,
    /// The last lines of its stderr.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}
