//! The names inside of `_meta` that mean something to a proxy, and the one token that it may have to change.

use crate::members::{Members, MembersError};
use crate::{Outcome, Raw, raw};
use serde_json::value::RawValue;

pub const META: &str = "_meta";
pub const PROGRESS_TOKEN: &str = "progressToken";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// Legacy: which task a message is about.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Modern: the extension by which a call may become a task.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// In a result's `_meta`, or an error's `data`: the answer is that of an earlier call, and the tool did not run again.
pub const JOINED: &str = "toolbus/joined";

/// A member of the params' `_meta`.
pub fn get(params: Option<&RawValue>, name: &str) -> Option<Raw> {
    let members = Members::of(params).ok()?;
    let meta = Members::of(members.get(META)).ok()?;
    meta.get(name).map(ToOwned::to_owned)
}

/// The params with that member of their `_meta`.
pub fn set(params: Option<&RawValue>, name: &'static str, value: Raw) -> Result<Raw, MembersError> {
    edit(params, |meta| meta.set(name, value))
}

/// The params without those members of their `_meta`; a `_meta` that would be left empty goes too.
pub fn without(params: Option<&RawValue>, names: &[&str]) -> Result<Option<Raw>, MembersError> {
    let mut members = Members::of(params)?;
    let Some(meta) = members.get(META) else { return Ok(params.map(ToOwned::to_owned)) };
    let mut meta = Members::of(Some(meta))?;
    for name in names {
        meta.remove(name);
    }
    let rest = (!meta.is_empty()).then(|| meta.to_raw());
    match rest {
        Some(rest) => members.set(META, rest),
        None => drop(members.remove(META)),
    }
    Ok(Some(members.to_raw()))
}

/// The params with a changed `_meta`.
pub fn edit(params: Option<&RawValue>, change: impl FnOnce(&mut Members<'_>)) -> Result<Raw, MembersError> {
    let mut members = Members::of(params)?;
    members.edit(META, change)?;
    Ok(members.to_raw())
}

/// The `_meta` members that make a request modern.
pub fn modern(version: &str, capabilities: Raw, client_info: Option<Raw>) -> Vec<(&'static str, Raw)> {
    let mut members = vec![(PROTOCOL_VERSION, raw(version)), (CLIENT_CAPABILITIES, capabilities)];
    members.extend(client_info.map(|info| (CLIENT_INFO, info)));
    members
}

/// The outcome, marked as that of an earlier call, of which something is told. An outcome that can't be marked stays as it
/// is.
pub fn mark_joined(outcome: Outcome, earlier: Raw) -> Outcome {
    match outcome {
        Outcome::Result(result) => {
            let marked = set(Some(&result), JOINED, earlier);
            Outcome::Result(marked.unwrap_or(result))
        }
        Outcome::Error(error) => {
            let marked = Members::of(Some(&error)).and_then(|mut members| {
                members.edit("data", |data| data.set(JOINED, earlier))?;
                Ok(members.to_raw())
            });
            Outcome::Error(marked.unwrap_or(error))
        }
    }
}
