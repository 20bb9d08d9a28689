//! The members of `_meta` that matter to a proxy, and functions to edit them.

use crate::members::{Members, MembersError};
use crate::{Outcome, Raw, raw};

/// The member of params and results that holds metadata.
pub const META: &str = "_meta";
/// Token that relates progress notifications to their request.
pub const PROGRESS_TOKEN: &str = "progressToken";
/// Modern: the protocol version of the request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Modern: the capabilities of the client.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Modern: name and version of the client.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Modern: the minimum level of log messages that the client wants.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Modern: the subscription that a notification belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// Legacy: the task that a message belongs to.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Modern: the extension by which a call may become a task.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// In a result's `_meta` or an error's `data`: the call was joined to an earlier one, and the tool did not run again.
pub const JOINED: &str = "toolbus/joined";

/// In a result's `_meta`: a hint of the library's tools on how to display it.
pub const DISPLAY_PREFERENCE: &str = "toolbus/displayPreference";

/// A member of the params' `_meta`.
pub fn get(params: Option<&Raw>, name: &str) -> Option<Raw> {
    params?.members().ok()?.get(META)?.members().ok()?.get(name).cloned()
}

/// The params with this member of their `_meta` set.
pub fn set(params: Option<&Raw>, name: &'static str, value: Raw) -> Result<Raw, MembersError> {
    edit(params, |meta| meta.set(name, value))
}

/// The params without these members of their `_meta`. An empty `_meta` is removed.
pub fn without(params: Option<&Raw>, names: &[&str]) -> Result<Option<Raw>, MembersError> {
    let mut members = Members::of(params)?.clone();
    let Some(meta) = members.get(META) else { return Ok(params.cloned()) };
    let mut meta = meta.members()?.clone();
    for name in names {
        meta.remove(name);
    }
    let rest = (!meta.is_empty()).then(|| meta.into_raw());
    match rest {
        Some(rest) => members.set(META, rest),
        None => drop(members.remove(META)),
    }
    Ok(Some(members.into_raw()))
}

/// The params with an edited `_meta`.
pub fn edit(params: Option<&Raw>, change: impl FnOnce(&mut Members)) -> Result<Raw, MembersError> {
    let mut members = Members::of(params)?.clone();
    members.edit(META, change)?;
    Ok(members.into_raw())
}

/// The `_meta` members of a modern request.
pub fn modern(version: &str, capabilities: Raw, client_info: Option<Raw>) -> Vec<(&'static str, Raw)> {
    let mut members = vec![(PROTOCOL_VERSION, raw(version)), (CLIENT_CAPABILITIES, capabilities)];
    members.extend(client_info.map(|info| (CLIENT_INFO, info)));
    members
}

/// Marks an outcome as that of an earlier call, with information about that call. An outcome that can't be marked is
/// returned unchanged.
pub fn mark_joined(outcome: Outcome, earlier: Raw) -> Outcome {
    match outcome {
        Outcome::Result(result) => {
            let marked = set(Some(&result), JOINED, earlier);
            Outcome::Result(marked.unwrap_or(result))
        }
        Outcome::Error(error) => {
            let marked = error.members().and_then(|members| {
                let mut members = members.clone();
                members.edit("data", |data| data.set(JOINED, earlier))?;
                Ok(members.into_raw())
            });
            Outcome::Error(marked.unwrap_or(error))
        }
    }
}
