//! A call that waits for approval, shortened for a list.

use super::PendingApproval;
use serde::Serialize;
use toolbus_mcp::{Members, Raw, TaskWish};

/// Arguments longer than this are truncated.
const MAX_ARGUMENT_BYTES: usize = 4 << 10;
/// Names longer than this are truncated.
const MAX_NAME_BYTES: usize = 256;

#[derive(Serialize)]
pub struct Listed<'a> {
    id: &'a str,
    hash: &'a str,
    server: &'a str,
    method: &'a str,
    name: &'a str,
    /// `None` if they are too long.
    arguments: Option<&'a Raw>,
    /// The start of arguments that are too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_begin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_bytes: Option<usize>,
    /// Other members of the params, which `show` shows: their number and size.
    more_members: usize,
    more_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a TaskWish>,
    caller: &'a str,
    role: Option<&'a str>,
    rule: &'a str,
    since_ms: u64,
    until_ms: Option<u64>,
}

impl<'a> From<&'a PendingApproval> for Listed<'a> {
    fn from(pending: &'a PendingApproval) -> Self {
        let arguments = pending.arguments.as_ref();
        let cut = arguments.map(Raw::get).filter(|text| text.len() > MAX_ARGUMENT_BYTES);
        let more = more_members(pending.params.as_ref());
        Self {
            id: &pending.id,
            hash: &pending.hash,
            server: &pending.server,
            method: &pending.method,
            name: truncated_name(&pending.name),
            arguments: arguments.filter(|_| cut.is_none()),
            arguments_begin: cut.map(|text| truncated(text, MAX_ARGUMENT_BYTES)),
            arguments_bytes: cut.map(str::len),
            more_members: more.len(),
            more_bytes: more.iter().sum(),
            task: pending.task.as_ref(),
            caller: &pending.caller,
            role: pending.role.as_deref(),
            rule: &pending.rule,
            since_ms: pending.since_ms,
            until_ms: pending.until_ms,
        }
    }
}

/// The sizes of the members besides name and arguments, each with its key.
fn more_members(params: Option<&Raw>) -> Vec<usize> {
    let Ok(members) = Members::of(params) else { return Vec::new() };
    let more = members.iter().filter(|(key, _)| !matches!(*key, "name" | "arguments"));
    more.map(|(key, value)| key.len() + value.get().len()).collect()
}

pub fn truncated_name(name: &str) -> &str {
    truncated(name, MAX_NAME_BYTES)
}

fn truncated(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
