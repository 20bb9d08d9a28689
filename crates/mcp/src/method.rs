//! The properties of methods that a proxy needs: which ones name an item of a server, and which ones list items.

use crate::Raw;
use crate::members::{Members, MembersError};

/// The four lists of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListKind {
    /// `tools/list`
    Tools,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    ResourceTemplates,
    /// `prompts/list`
    Prompts,
}

impl ListKind {
    /// All lists.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Resources, Self::ResourceTemplates, Self::Prompts];

    /// The list that a method returns.
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// The method that returns the list.
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

    /// The member that identifies an item.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::ResourceTemplates => "uriTemplate",
        }
    }

    /// The server capability that the list requires.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources | Self::ResourceTemplates => "resources",
            Self::Prompts => "prompts",
        }
    }

    /// The notification that the list has changed.
    pub fn list_changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Resources | Self::ResourceTemplates => "notifications/resources/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
        }
    }
}

/// Whether the request is of a known method that names no item. Unknown methods may refer to any item.
pub fn is_plain_request(method: &str) -> bool {
    let others = ["initialize", "ping", "server/discover", "logging/setLevel", "subscriptions/listen"];
    ListKind::of_method(method).is_some() || others.contains(&method)
}

/// MCP methods without an effect outside their connection, or whose repetition has no further effect.
const READS: [&str; 9] = [
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/get",
    "completion/complete",
    "tasks/get",
    "tasks/result",
    "tasks/list",
    "tasks/cancel",
];

/// Whether a request may have an effect that must not happen twice. True for unknown methods.
pub fn has_effect(method: &str) -> bool {
    !is_plain_request(method) && !READS.contains(&method)
}

/// Like [`is_plain_request`], for a client's notifications.
pub fn is_plain_notification(method: &str) -> bool {
    let names = ["initialized", "cancelled", "progress", "roots/list_changed", "tasks/status"];
    method.strip_prefix("notifications/").is_some_and(|name| names.contains(&name))
}

/// The item that a request names, by which it is routed to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameKey {
    /// Name of a tool.
    Tool(String),
    /// Name of a prompt.
    Prompt(String),
    /// URI of a resource.
    Uri(String),
    /// Name of a task.
    Task(String),
}

/// Why the name in a request can't be determined.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The params are not an object, or have a duplicate member.
    #[error(transparent)]
    Unreadable(#[from] MembersError),
    /// A required member is missing or not a string.
    #[error("{method} requires {member:?} as a string")]
    Missing {
        /// Method of the request.
        method: String,
        /// Name of the member.
        member: &'static str,
    },
    /// Some servers would take this member for the one that was checked.
    #[error("{0:?} differs only in case from a member that names the item")]
    OtherCase(String),
}

/// Members of params that determine which item a request names.
const NAMING_MEMBERS: [&str; 6] = ["name", "uri", "arguments", "ref", "taskId", "type"];

fn reject_other_case(members: &Members) -> Result<(), NameError> {
    let is_ambiguous = |key: &str| {
        // Case folding never shortens a much longer text to one of these.
        key.len() <= 32
            && !NAMING_MEMBERS.contains(&key)
            && NAMING_MEMBERS.iter().any(|member| differs_only_in_case(member, key))
    };
    match members.iter().find(|(key, _)| is_ambiguous(key)) {
        Some((key, _)) => Err(NameError::OtherCase(key.to_owned())),
        None => Ok(()),
    }
}

fn differs_only_in_case(member: &str, key: &str) -> bool {
    let fold = |text: &str| text.to_uppercase().to_lowercase();
    // Fast path: nearly all keys are ASCII.
    if key.is_ascii() { member.eq_ignore_ascii_case(key) } else { fold(member) == fold(key) }
}

/// The name in a request's params, if its method has one. A required name that can't be determined is an error:
/// otherwise the policy could check one name while the server reads another.
pub fn required_name(method: &str, params: Option<&Raw>) -> Result<Option<NameKey>, NameError> {
    let params = Members::of(params)?;
    let (member, key): (_, fn(String) -> NameKey) = match method {
        "tools/call" => ("name", NameKey::Tool),
        "prompts/get" => ("name", NameKey::Prompt),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => ("uri", NameKey::Uri),
        "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => ("taskId", NameKey::Task),
        "completion/complete" => {
            reject_other_case(params)?;
            return name_of_reference(params).map(Some);
        }
        _ => return Ok(None),
    };
    reject_other_case(params)?;
    let missing = || NameError::Missing { method: method.to_owned(), member };
    params.text(member).map(|name| Some(key(name))).ok_or_else(missing)
}

/// Like [`required_name`], but returns `None` on errors.
pub fn routed_name(method: &str, params: Option<&Raw>) -> Option<NameKey> {
    required_name(method, params).ok().flatten()
}

fn name_of_reference(params: &Members) -> Result<NameKey, NameError> {
    let reference = Members::of(params.get("ref"))?;
    reject_other_case(reference)?;
    let name = match reference.text("type").as_deref() {
        Some("ref/prompt") => reference.text("name").map(NameKey::Prompt),
        Some("ref/resource") => reference.text("uri").map(NameKey::Uri),
        _ => None,
    };
    name.ok_or_else(|| NameError::Missing { method: "completion/complete".to_owned(), member: "ref" })
}
