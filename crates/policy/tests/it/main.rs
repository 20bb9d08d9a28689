//! The policy through its public face: from the text of a file to decisions, limits and warnings.

mod arguments;
mod decisions;
mod properties;
mod reading;

use serde_json::value::RawValue;
use toolbus_policy::{Arguments, Effect, Item, PolicySet, Question};

fn set(text: &str) -> PolicySet {
    PolicySet::read(text).expect("rules that can be read").0
}

fn question<'a>(role: &'a str, server: &'a str, item: Item<'a>, arguments: Arguments<'a>) -> Question<'a> {
    Question { role: Some(role), server, item, arguments }
}

/// What a call with these arguments comes to.
fn call(set: &PolicySet, role: &str, server: &str, tool: &str, arguments: &str) -> Effect {
    let arguments = RawValue::from_string(arguments.to_owned()).expect("JSON");
    set.decide(&question(role, server, Item::Tool(tool), Arguments::Known(&arguments))).effect
}

/// What a list shows of it.
fn listed(set: &PolicySet, role: &str, server: &str, item: Item<'_>) -> Effect {
    set.decide(&question(role, server, item, Arguments::Unknown)).effect
}
