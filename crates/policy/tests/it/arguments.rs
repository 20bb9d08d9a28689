//! Conditions on the arguments of a call.

use crate::{call, listed, question, set};
use serde_json::value::RawValue;
use toolbus_policy::{Arguments, ArgumentsProblem, Effect, Item, PolicySet, Reason};

const RULES: &str = r#"
[roles.r]
allow = ["read", "fetch"]
[[roles.r.rules]]
effect = "allow"
match = ["files/write"]
when = [{ pointer = "/path", prefix = "/tmp/" }, { pointer = "/size", min = 0, max = 100 }]
[[roles.r.rules]]
effect = "deny"
match = ["read"]
when = [{ pointer = "/path", prefix = "/etc/" }]
[[roles.r.rules]]
effect = "deny"
match = ["fetch"]
when = [{ pointer = "/url", prefix = "file:///etc/" }]
[[roles.r.rules]]
effect = "deny"
match = ["fetch"]
when = [{ pointer = "/url", glob = "*://**/secret" }]
[[roles.r.rules]]
effect = "ask"
match = ["read"]
when = [{ pointer = "/mode", equals = "slow" }]
"#;

#[track_caller]
fn check(server: &str, tool: &str, arguments: &str, effect: Effect) {
    assert_eq!(call(&set(RULES), "r", server, tool, arguments), effect, "{tool} {arguments}");
}

#[test]
fn all_conditions_of_a_rule_must_hold() {
    check("files", "write", r#"{"path":"/tmp/a","size":5}"#, Effect::Allow);
    check("files", "write", r#"{"path":"/tmp/a","size":101}"#, Effect::Deny);
    check("files", "write", r#"{"path":"/home/a","size":5}"#, Effect::Deny);
    check("files", "write", r#"{"path":"/tmp/a"}"#, Effect::Deny);
    check("files", "write", "{}", Effect::Deny);
    check("other", "write", r#"{"path":"/tmp/a","size":5}"#, Effect::Deny);
}

#[test]
fn a_conditional_deny_or_ask_applies_only_if_its_condition_holds() {
    check("files", "read", r#"{"path":"/tmp/a"}"#, Effect::Allow);
    check("files", "read", r#"{"path":"/etc/passwd"}"#, Effect::Deny);
    check("files", "read", r#"{"mode":"slow"}"#, Effect::Ask);
    check("files", "read", r#"{"mode":"slow","path":"/etc/x"}"#, Effect::Deny);
    check("files", "read", "{}", Effect::Allow);
}

#[test]
fn numbers_are_compared_with_fractions_and_whole_numbers() {
    let set =
        set("[[roles.r.rules]]\neffect = 'allow'\nmatch = ['x']\nwhen = [{ pointer = '/n', min = 0.5, max = 2 }]");
    for (n, effect) in [
        ("0.4", Effect::Deny),
        ("0.5", Effect::Allow),
        ("1", Effect::Allow),
        ("2", Effect::Allow),
        ("2.1", Effect::Deny),
    ] {
        assert_eq!(call(&set, "r", "s", "x", &format!(r#"{{"n":{n}}}"#)), effect, "{n}");
    }
}

#[test]
fn a_rule_is_shown_with_its_conditions() {
    let set = set("[[roles.r.rules]]\neffect = 'ask'\nmatch = ['x']\nwhen = [{ pointer = '/a', min = 0.5, max = 2 }, \
                   { pointer = '/b', prefix = '/tmp/', glob = '*.txt' }, { pointer = '/c', equals = 'x' }, \
                   { pointer = '/d', equals = true }, { pointer = '/e', equals = 3 }]");
    let decision = set.decide(&question("r", "s", Item::Tool("x"), Arguments::Unknown));
    assert_eq!(
        decision.reason.to_string(),
        "ask \"x\" when /a is at least 0.5 and is at most 2 and /b begins with \"/tmp/\" and matches \"*.txt\" \
         and /c is \"x\" and /d is true and /e is 3 in [roles.r]"
    );
}

#[test]
fn path_traversal_satisfies_no_allow_and_bypasses_no_deny() {
    for path in ["/tmp/../etc/x", "/tmp/%2e%2e/etc/x", "/tmp/%252e%252e/x", "/tmp\\\\..\\\\x", "/tmp/.."] {
        check("files", "write", &format!(r#"{{"path":"{path}","size":1}}"#), Effect::Deny);
        check("files", "read", &format!(r#"{{"path":"{path}"}}"#), Effect::Deny);
    }
    for path in ["//etc/passwd", "/./etc/passwd", "/%65tc/passwd"] {
        check("files", "read", &format!(r#"{{"path":"{path}"}}"#), Effect::Deny);
    }
    for host in ["", "localhost", "elsewhere"] {
        check("files", "fetch", &format!(r#"{{"url":"file://{host}/etc/passwd"}}"#), Effect::Deny);
    }
    check("files", "fetch", r#"{"url":"https://localhost/etc/passwd"}"#, Effect::Allow);
    for end in ["", "#x", "?#x", "/."] {
        check("files", "fetch", &format!(r#"{{"url":"file:///a/secret{end}"}}"#), Effect::Deny);
    }
    check("files", "fetch", r#"{"url":"https://a.b/secret#x"}"#, Effect::Deny);
    check("files", "fetch", r#"{"url":"https://a.b/secret?x"}"#, Effect::Allow);
    check("files", "read", r#"{"path":["/etc/passwd"]}"#, Effect::Deny);
    check("files", "write", r#"{"path":["/tmp/x"],"size":1}"#, Effect::Deny);
}

#[track_caller]
fn denied_for(arguments: &str, problem: ArgumentsProblem) {
    let set = set(RULES);
    let arguments = RawValue::from_string(arguments.to_owned()).expect("JSON");
    let decision = set.decide(&question("r", "files", Item::Tool("read"), Arguments::Known(arguments.get())));
    match decision.reason {
        Reason::BadArguments(_, found) => assert_eq!(found, problem, "{arguments}"),
        other => panic!("{arguments}: {other:?}"),
    }
    assert_eq!(decision.effect, Effect::Deny);
}

#[test]
fn ambiguous_arguments_are_denied() {
    denied_for(r#"{"path":"/tmp/a","path":"/etc/passwd"}"#, ArgumentsProblem::KeyTwice);
    denied_for(r#"{"path":"/tmp/a","p\u0061th":"/etc/passwd"}"#, ArgumentsProblem::KeyTwice);
    denied_for(r#"{"path":"/tmp/a","Path":"/etc/passwd"}"#, ArgumentsProblem::OtherCase);
    denied_for(r#"{"path":"\ud800"}"#, ArgumentsProblem::NotUnicode);
    for text in ["[]", "null", "\"x\"", "5"] {
        denied_for(text, ArgumentsProblem::NotAnObject);
    }
}

#[test]
fn arguments_without_conditions_are_not_checked() {
    let set = set("[roles.r]\nallow = [\"a\", \"b\"]\ndeny = [\"c\"]\n[[roles.r.rules]]\neffect = \"deny\"\n\
                   match = [\"b\", \"c\"]\nwhen = [{ pointer = \"/x\", equals = 1 }]");
    assert_eq!(call(&set, "r", "s", "a", "[]"), Effect::Allow);
    assert_eq!(call(&set, "r", "s", "b", "[]"), Effect::Deny);
    let arguments = RawValue::from_string("[]".into()).expect("JSON");
    let decision = set.decide(&question("r", "s", Item::Tool("c"), Arguments::Known(arguments.get())));
    assert!(matches!(decision.reason, Reason::Rule(_)), "denied anyway: {}", decision.reason);
    assert_eq!(call(&set, "r", "s", "b", r#"{"y":1,"y":2}"#), Effect::Allow);
}

#[test]
fn lists_include_tools_that_some_arguments_would_allow() {
    let set = set(RULES);
    assert_eq!(listed(&set, "r", "files", Item::Tool("write")), Effect::Allow);
    assert_eq!(listed(&set, "r", "other", Item::Tool("write")), Effect::Deny);
    assert_eq!(listed(&set, "r", "files", Item::Tool("read")), Effect::Allow);
    // A resource has no arguments that could satisfy a condition.
    assert_eq!(listed(&set, "r", "files", Item::Resource("write")), Effect::Deny);
}

/// The document is scanned once for all conditions, not once per condition.
#[test]
fn a_megabyte_is_scanned_once_for_a_thousand_conditions() {
    let mut text = String::from("[roles.r]\nallow = [\"w\"]\n");
    for n in 0..1000 {
        text.push_str(&format!(
            "[[roles.r.rules]]\neffect = \"deny\"\nmatch = [\"w\"]\nwhen = [{{ pointer = \"/a/k{n}\", equals = \"bad\" }}]\n"
        ));
    }
    let set: PolicySet = set(&text);
    let filler: String = (0..12_000).map(|n| format!("\"f{n}\":[{{\"k1\":\"{}\"}}],", "bad ".repeat(20))).collect();
    let good = format!("{{{filler}\"a\":{{\"k999\":\"good\"}}}}");
    let bad = format!("{{{filler}\"a\":{{\"k999\":\"bad\"}}}}");
    assert!(good.len() > 1_000_000);
    assert_eq!(call(&set, "r", "s", "w", &good), Effect::Allow);
    assert_eq!(call(&set, "r", "s", "w", &bad), Effect::Deny);
    let deep = format!("{{\"x\":{}{},\"a\":{{\"k0\":\"bad\"}}}}", "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(call(&set, "r", "s", "w", &deep), Effect::Deny);
}
