//! What a proxy has to know about methods: which ones name something that belongs to a server, and which ones list.

use crate::members::{Members, MembersError};
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

/// Whether a client's request names nothing and it is known what it does. What is not known might use anything.
pub fn is_plain_request(method: &str) -> bool {
    let others = ["initialize", "ping", "server/discover", "logging/setLevel", "subscriptions/listen"];
    ListKind::of_method(method).is_some() || others.contains(&method)
}

/// The same of a client's notifications.
pub fn is_plain_notification(method: &str) -> bool {
    let names = ["initialized", "cancelled", "progress", "roots/list_changed", "tasks/status"];
    method.strip_prefix("notifications/").is_some_and(|name| names.contains(&name))
}

/// What a request names, by which it finds its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameKey {
    Tool(String),
    Prompt(String),
    Uri(String),
    Task(String),
}

/// Why a request's name can't be told.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    #[error(transparent)]
    Unreadable(#[from] MembersError),
    #[error("{method} needs {member:?}, as text")]
    Missing { method: String, member: &'static str },
    /// Some servers take it for the member that was decided about.
    #[error("{0:?} is written in another case than the member that counts")]
    OtherCase(String),
}

/// Members of params that say what a request is about.
const TELLING: [&str; 6] = ["name", "uri", "arguments", "ref", "taskId", "type"];

fn refuse_other_case(members: &Members<'_>) -> Result<(), NameError> {
    let is_odd = |key: &str| {
        // Folding never makes a text of ASCII letters from a much longer one.
        key.len() <= 32 && !TELLING.contains(&key) && TELLING.iter().any(|telling| is_same_but_for_case(telling, key))
    };
    match members.iter().find(|(key, _)| is_odd(key)) {
        Some((key, _)) => Err(NameError::OtherCase(key.to_owned())),
        None => Ok(()),
    }
}

fn is_same_but_for_case(telling: &str, key: &str) -> bool {
    let fold = |text: &str| text.to_uppercase().to_lowercase();
    // Nearly all keys are, and every request is asked several times.
    if key.is_ascii() { telling.eq_ignore_ascii_case(key) } else { fold(telling) == fold(key) }
}

/// The name inside of a request's params, if its method has one. What must have a name and has none that can be read is
/// an error, so that nobody can decide about one name while the server reads another.
pub fn required_name(method: &str, params: Option<&RawValue>) -> Result<Option<NameKey>, NameError> {
    let params = Members::of(params)?;
    let (member, key): (_, fn(String) -> NameKey) = match method {
        "tools/call" => ("name", NameKey::Tool),
        "prompts/get" => ("name", NameKey::Prompt),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => ("uri", NameKey::Uri),
        "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => ("taskId", NameKey::Task),
        "completion/complete" => {
            refuse_other_case(&params)?;
            return referred(&params).map(Some);
        }
        _ => return Ok(None),
    };
    refuse_other_case(&params)?;
    let missing = || NameError::Missing { method: method.to_owned(), member };
    params.text(member).map(|name| Some(key(name))).ok_or_else(missing)
}

/// The same where a name that can't be read is as good as none.
pub fn routed_name(method: &str, params: Option<&RawValue>) -> Option<NameKey> {
    required_name(method, params).ok().flatten()
}

fn referred(params: &Members<'_>) -> Result<NameKey, NameError> {
    let reference = Members::of(params.get("ref"))?;
    refuse_other_case(&reference)?;
    let name = match reference.text("type").as_deref() {
        Some("ref/prompt") => reference.text("name").map(NameKey::Prompt),
        Some("ref/resource") => reference.text("uri").map(NameKey::Uri),
        _ => None,
    };
    name.ok_or_else(|| NameError::Missing { method: "completion/complete".to_owned(), member: "ref" })
}
