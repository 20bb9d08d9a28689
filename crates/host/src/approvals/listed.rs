//! A call that waits, short enough to stand in a list of many.

use super::PendingApproval;
use serde::Serialize;
use serde_json::value::RawValue;

/// So much of arguments stands in a list.
const MOST_ARGUMENTS: usize = 4 << 10;
/// So much of a name does.
const MOST_NAME: usize = 256;

#[derive(Serialize)]
pub struct Listed<'a> {
    id: &'a str,
    hash: &'a str,
    server: &'a str,
    method: &'a str,
    name: &'a str,
    /// Not those that are too long.
    arguments: Option<&'a RawValue>,
    /// How arguments begin that are too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_begin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_bytes: Option<usize>,
    caller: &'a str,
    role: Option<&'a str>,
    rule: &'a str,
    since_ms: u64,
    until_ms: Option<u64>,
}

impl<'a> From<&'a PendingApproval> for Listed<'a> {
    fn from(pending: &'a PendingApproval) -> Self {
        let arguments = pending.arguments.as_deref();
        let cut = arguments.map(RawValue::get).filter(|text| text.len() > MOST_ARGUMENTS);
        Self {
            id: &pending.id,
            hash: &pending.hash,
            server: &pending.server,
            method: &pending.method,
            name: beginning(&pending.name),
            arguments: arguments.filter(|_| cut.is_none()),
            arguments_begin: cut.map(|text| cut_at(text, MOST_ARGUMENTS)),
            arguments_bytes: cut.map(str::len),
            caller: &pending.caller,
            role: pending.role.as_deref(),
            rule: &pending.rule,
            since_ms: pending.since_ms,
            until_ms: pending.until_ms,
        }
    }
}

/// As much of a name as anybody needs to see.
pub fn beginning(name: &str) -> &str {
    cut_at(name, MOST_NAME)
}

fn cut_at(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
