//! The host manifest: everything that a worker needs to route to a host, and to list its tools while it is offline.

use crate::{Era, ListKind, Members, Raw};
use serde::{Deserialize, Serialize};

/// Capabilities, and prefixes of extensions, that the protocol itself defines.
const STANDARD: [&str; 8] =
    ["tools", "resources", "prompts", "logging", "completions", "tasks", "extensions", "experimental"];
const STANDARD_PREFIX: &str = "io.modelcontextprotocol/";

/// The manifest that a host announces.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostManifest {
    /// In configuration order: if two servers have a tool of the same name, the first one keeps it.
    pub servers: Vec<ServerManifest>,
    /// No server is shown, but one that the role may be able to use has not listed anything yet: it may be starting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Problems for the operator, such as name collisions and names that are too long. One sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Names that the broker holds back, because they belong to another host. Set by the broker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
    /// Whether the host may offer only the names that are listed here. Set by the broker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed_only: bool,
    /// The pool that the host is a member of. The host asks for it; the broker removes it unless its rules allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The host of a pool stops: it starts no calls any more, and hands back those that it has not started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Namespaces of methods that belong to another host. Set by the broker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back_namespaces: Vec<String>,
    /// Whether rules of the operator cover all names that are listed here. Set by the broker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub granted: bool,
}

/// One server in a [`HostManifest`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerManifest {
    /// Name of the server.
    pub name: String,
    /// State of the server.
    pub state: ServerState,
    /// Why the server is down, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
    /// The eras that the server supports.
    #[serde(default)]
    pub eras: Vec<Era>,
    /// The result of the host's own `initialize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Raw>,
    /// The result of `server/discover`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discover: Option<Raw>,
    /// Tools under the names that workers see, without those that the role may not use.
    #[serde(default)]
    pub tools: Vec<Raw>,
    /// Resources that the role may use.
    #[serde(default)]
    pub resources: Vec<Raw>,
    /// Resource templates that the role may use.
    #[serde(default)]
    pub resource_templates: Vec<Raw>,
    /// Prompts under the names that workers see, without those that the role may not use.
    #[serde(default)]
    pub prompts: Vec<Raw>,
    /// Names of tools that the role may use and that are hidden, because their definitions are not approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Tools whose calls fail immediately while the host is offline, by configuration.
    #[serde(default, skip_serializing_if = "SomeTools::is_empty")]
    pub fail_fast: SomeTools,
    /// Tools whose calls are never joined to an earlier equal call, because they are replay-safe or by configuration.
    #[serde(default, skip_serializing_if = "SomeTools::is_empty")]
    pub alone: SomeTools,
    /// All clients share one session of the server, so it keeps no state for any of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Tools that may run twice. Only hosts of a pool say so.
    #[serde(default, skip_serializing_if = "SomeTools::is_empty")]
    pub replay_safe: SomeTools,
}

/// A subset of a server's tools, under the names that workers see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SomeTools {
    /// All tools but those in `except`, and also requests that name no tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// The tools, if `all` is false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The excluded tools, if `all` is true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

impl SomeTools {
    /// All tools but the named ones, or only the named ones.
    pub fn new(all: bool, named: Vec<String>) -> Self {
        match all {
            true => Self { all, tools: Vec::new(), except: named },
            false => Self { all, tools: named, except: Vec::new() },
        }
    }

    /// Whether no tool is in the set.
    pub fn is_empty(&self) -> bool {
        !self.all && self.tools.is_empty()
    }

    /// Whether the tool, or a request that names none, is in the set.
    pub fn contain(&self, tool: Option<&str>) -> bool {
        let named = |tools: &[String]| tool.is_some_and(|tool| tools.iter().any(|name| name == tool));
        if self.all { !named(&self.except) } else { named(&self.tools) }
    }
}

impl ServerManifest {
    /// The names of the capabilities and extensions that the protocol does not define, in both eras.
    pub fn vendor_capabilities(&self) -> Vec<String> {
        let greetings = [&self.initialize, &self.discover].into_iter().flatten();
        let capabilities =
            greetings.filter_map(|greeting| Members::of(greeting.members().ok()?.get("capabilities")).ok());
        let mut names = Vec::new();
        for capabilities in capabilities {
            let lists =
                ["experimental", "extensions"].map(|list| Members::of(capabilities.get(list)).unwrap_or_default());
            let extensions = lists.into_iter().flat_map(Members::iter).map(|(name, _)| name);
            let others = capabilities.iter().map(|(name, _)| name).filter(|name| !STANDARD.contains(name));
            names.extend(extensions.chain(others).filter(|name| !name.starts_with(STANDARD_PREFIX)).map(str::to_owned));
        }
        names
    }

    /// The items of one list.
    pub fn items(&self, kind: ListKind) -> &[Raw] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.resource_templates,
            ListKind::Prompts => &self.prompts,
        }
    }

    /// The items of one list, mutable.
    pub fn items_mut(&mut self, kind: ListKind) -> &mut Vec<Raw> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.resource_templates,
            ListKind::Prompts => &mut self.prompts,
        }
    }
}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// The server is being started.
    Starting,
    /// The server is running.
    Up,
    /// The server is not running; see [`Down`].
    Down,
}

/// Why a server is down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// What happened.
    pub reason: String,
    /// The last lines of its stderr.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}
