//! What a proxy has to know about methods: which ones name something that belongs to a server, and which ones list.

use crate::members::Members;
use serde_json::value::RawValue;

/// The four lists that a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListKind {
    Tools,
    Resources,
    ResourceTemplates,
    Prompts,
}

impl ListKind {
    pub const ALL: [Self; 4] = [Self::Tools, Self::Resources, Self::ResourceTemplates, Self::Prompts];

    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// The member of the result that holds the items.
    pub fn items(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    /// The member of an item that tells it from the others.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::ResourceTemplates => "uriTemplate",
        }
    }

    /// The server capability without which the list is not asked for.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources | Self::ResourceTemplates => "resources",
            Self::Prompts => "prompts",
        }
    }

    pub fn list_changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Resources | Self::ResourceTemplates => "notifications/resources/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
        }
    }
}

/// What a request names, by which it finds its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameKey {
    Tool(String),
    Prompt(String),
    Uri(String),
    Task(String),
}

/// The name inside of a request's params, if its method has one.
pub fn routed_name(method: &str, params: Option<&RawValue>) -> Option<NameKey> {
    let params = Members::of(params).ok()?;
    match method {
        "tools/call" => params.text("name").map(NameKey::Tool),
        "prompts/get" => params.text("name").map(NameKey::Prompt),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => params.text("uri").map(NameKey::Uri),
        "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => params.text("taskId").map(NameKey::Task),
        "completion/complete" => {
            let reference = Members::of(params.get("ref")).ok()?;
            match reference.text("type")?.as_str() {
                "ref/prompt" => reference.text("name").map(NameKey::Prompt),
                "ref/resource" => reference.text("uri").map(NameKey::Uri),
                _ => None,
            }
        }
        _ => None,
    }
}
