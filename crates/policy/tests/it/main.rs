//! Tests of the public API: from the text of a file to decisions, limits and warnings.

mod arguments;
mod decisions;
mod properties;
mod reading;

use serde_json::value::RawValue;
use toolbus_policy::{Arguments, Effect, Item, PolicySet, Question};

fn set(text: &str) -> PolicySet {
    PolicySet::read(text).expect("valid rules").0
}

fn question<'a>(role: &'a str, server: &'a str, item: Item<'a>, arguments: Arguments<'a>) -> Question<'a> {
    Question { role: Some(role), server, item, arguments }
}

/// The effect on a call with these arguments.
fn call(set: &PolicySet, role: &str, server: &str, tool: &str, arguments: &str) -> Effect {
    let arguments = RawValue::from_string(arguments.to_owned()).expect("JSON");
    set.decide(&question(role, server, Item::Tool(tool), Arguments::Known(arguments.get()))).effect
}

/// The effect on the item in a list.
fn listed(set: &PolicySet, role: &str, server: &str, item: Item<'_>) -> Effect {
    set.decide(&question(role, server, item, Arguments::Unknown)).effect
}
