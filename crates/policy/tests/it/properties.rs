//! Properties of every set of rules and every question.

use crate::{call, listed, question};
use proptest::prelude::*;
use serde_json::value::RawValue;
use toolbus_policy::{Arguments, Effect, Item, PolicySet};

#[derive(Debug, Clone)]
struct Line {
    effect: &'static str,
    pattern: &'static str,
    when: Option<&'static str>,
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let effect = prop::sample::select(vec!["allow", "ask", "deny"]);
    let pattern = prop::sample::select(vec![
        "a",
        "b",
        "*",
        "a*",
        "s/a",
        "s/*",
        "t/a",
        "*/b",
        "file:///p/**",
        "file:///**",
        "s/file:///p/q/**",
        "{a,b}",
        "zz",
    ]);
    let when = prop::option::of(prop::sample::select(vec![
        "{ pointer = '/x', equals = 1 }",
        "{ pointer = '/x', min = 1, max = 5 }",
        "{ pointer = '/y', prefix = '/tmp/' }",
        "{ pointer = '/y', glob = '/tmp/*' }, { pointer = '/x', min = 0 }",
        "{ pointer = '/z/0', equals = true }",
    ]));
    prop::collection::vec(
        (effect, pattern, when).prop_map(|(effect, pattern, when)| Line { effect, pattern, when }),
        0..8,
    )
}

fn read(lines: &[Line]) -> PolicySet {
    let mut text = String::from("[roles.r]\n");
    for line in lines {
        let when = line.when.unwrap_or_default();
        text.push_str(&format!(
            "[[roles.r.rules]]\neffect = '{}'\nmatch = ['{}']\nwhen = [{when}]\n",
            line.effect, line.pattern
        ));
    }
    PolicySet::read(&text).expect("valid rules").0
}

#[derive(Debug, Clone)]
struct Use {
    server: &'static str,
    item: Item<'static>,
    arguments: Box<RawValue>,
}

fn uses() -> impl Strategy<Value = Use> {
    let item = prop::sample::select(vec![
        Item::Tool("a"),
        Item::Tool("b"),
        Item::Tool("ab"),
        Item::Tool("s/a"),
        Item::Prompt("a"),
        Item::Resource("file:///p/q"),
        Item::Resource("file:///p/../q"),
        Item::Resource("file:///p/q/../../x"),
        Item::Resource("FILE:///p/%71/r"),
        Item::Server,
    ]);
    let arguments = prop::sample::select(vec![
        "{}",
        r#"{"x":1}"#,
        r#"{"x":7,"y":"/tmp/a"}"#,
        r#"{"x":1,"y":"/tmp/../etc"}"#,
        r#"{"x":1,"x":2}"#,
        r#"{"X":1}"#,
        r#"{"y":"/etc","z":[true]}"#,
        r#"{"x":"1","y":["/tmp/a"]}"#,
        "[]",
        "null",
        r#"{"y":"//tmp/x","x":3}"#,
    ]);
    let server = prop::sample::select(vec!["s", "t", "u"]);
    (server, item, arguments).prop_map(|(server, item, arguments)| Use {
        server,
        item,
        arguments: RawValue::from_string(arguments.to_owned()).expect("JSON"),
    })
}

fn decide(set: &PolicySet, used: &Use) -> Effect {
    set.decide(&question("r", used.server, used.item, Arguments::Known(used.arguments.get()))).effect
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_order_of_rules_does_not_matter(lines in lines(), used in uses(), rotation in 0usize..8) {
        let mut other = lines.clone();
        other.reverse();
        if !other.is_empty() {
            let by = rotation % other.len();
            other.rotate_left(by);
        }
        let (one, two) = (read(&lines), read(&other));
        prop_assert_eq!(decide(&one, &used), decide(&two, &used));
        prop_assert_eq!(listed(&one, "r", used.server, used.item), listed(&two, "r", used.server, used.item));
    }

    #[test]
    fn an_added_deny_never_widens_access_and_an_added_ask_never_removes_approval(
        lines in lines(), used in uses(), at in 0usize..8, more in lines()
    ) {
        let before = decide(&read(&lines), &used);
        for line in more {
            let mut with = lines.clone();
            with.insert(at.min(lines.len()), Line { effect: "deny", ..line.clone() });
            prop_assert!(decide(&read(&with), &used) >= before);
            with = lines.clone();
            with.push(Line { effect: "ask", ..line });
            prop_assert!(before == Effect::Deny || decide(&read(&with), &used) >= before);
        }
    }

    #[test]
    fn a_callable_item_is_listed_and_its_server_visible(lines in lines(), used in uses()) {
        let set = read(&lines);
        if decide(&set, &used) != Effect::Deny {
            prop_assert_ne!(listed(&set, "r", used.server, used.item), Effect::Deny);
            prop_assert_eq!(listed(&set, "r", used.server, Item::Server), Effect::Allow);
        }
    }

    /// Adds an unconditional rule that matches the name.
    #[test]
    fn deny_beats_ask_beats_allow(lines in lines(), used in uses()) {
        let Item::Tool(name) = used.item else { return Ok(()) };
        if name.contains('/') {
            return Ok(());
        }
        let with = |effect: &'static str| {
            let mut lines = lines.clone();
            lines.push(Line { effect, pattern: if name == "ab" { "a*" } else { "*" }, when: None });
            decide(&read(&lines), &used)
        };
        prop_assert_eq!(with("deny"), Effect::Deny);
        prop_assert_ne!(with("ask"), Effect::Allow);
    }

    #[test]
    fn an_unknown_role_is_always_denied(lines in lines(), used in uses(), role in "[a-zA-Z ]{0,3}") {
        let set = read(&lines);
        if role != "r" {
            prop_assert_eq!(call(&set, &role, used.server, used.item.name().unwrap_or("a"), "{}"), Effect::Deny);
        }
    }
}
