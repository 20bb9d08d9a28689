//! What a host offers, as it announces it: one manifest with everything a worker needs to show the tools of a host that is
//! away, and to know how to reach them.

use crate::{Era, ListKind, Raw};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostManifest {
    /// In the order of the host's configuration: where two servers have a tool of the same name, the earlier keeps it.
    pub servers: Vec<ServerManifest>,
    /// What the operator should know: collisions, names that are too long. Sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerManifest {
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
    /// Calls that fail at once while the host is away, because its configuration says so.
    #[serde(default, skip_serializing_if = "SomeTools::is_empty")]
    pub fail_fast: SomeTools,
    /// Calls that always run, also if the same one was made before and its answer was lost: they may run twice, or the
    /// host's configuration says so.
    #[serde(default, skip_serializing_if = "SomeTools::is_empty")]
    pub alone: SomeTools,
}

/// Some of a server's tools, under the names that workers see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SomeTools {
    /// All but those of `except`, and what names no tool as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

impl SomeTools {
    /// All but those, or only those.
    pub fn new(all: bool, named: Vec<String>) -> Self {
        match all {
            true => Self { all, tools: Vec::new(), except: named },
            false => Self { all, tools: named, except: Vec::new() },
        }
    }

    pub fn is_empty(&self) -> bool {
        !self.all && self.tools.is_empty()
    }

    /// Whether that tool is among them, or what names none.
    pub fn contain(&self, tool: Option<&str>) -> bool {
        let named = |tools: &[String]| tool.is_some_and(|tool| tools.iter().any(|name| name == tool));
        if self.all { !named(&self.except) } else { named(&self.tools) }
    }
}

impl ServerManifest {
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
