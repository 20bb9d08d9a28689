//! Policy: documents and decisions. The input is a document, a line `---`, then role, server and item, one per line,
//! and the arguments.

use crate::input::Input;
use crate::json::Json;
use serde_json::value::RawValue;
use toolbus_policy::{Arguments, Effect, Item, PolicySet, Question};

pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (document, request) = text.split_once("\n---\n").unwrap_or((text, ""));
    let Ok((set, _)) = PolicySet::read(document) else { return };
    let mut request = Input(request.as_bytes());
    let (Some(role), Some(server), Some(kind), Some(name)) =
        (request.text(), request.text(), request.text(), request.text())
    else {
        return;
    };
    let item = match kind {
        "resource" => Item::Resource(name),
        "prompt" => Item::Prompt(name),
        "server" => Item::Server,
        _ => Item::Tool(name),
    };
    let question = |arguments| Question { role: Some(role), server, item, arguments };
    let listed = set.decide(&question(Arguments::Unknown));
    let absent = set.decide(&question(Arguments::Absent)).effect;
    deny_by_default(&set, &question(Arguments::Unknown), listed.effect);
    deny_by_default(&set, &question(Arguments::Absent), absent);
    let Ok(arguments) = std::str::from_utf8(request.0) else { return };
    let Ok(raw) = serde_json::from_str::<&RawValue>(arguments) else { return };
    let arguments = raw.get();
    let decided = set.decide(&question(Arguments::Known(arguments)));
    deny_by_default(&set, &question(Arguments::Known(arguments)), decided.effect);
    assert!(listed.is_shown() || !decided.is_shown(), "a call is possible, but its item is not listed");
    assert!(decided.effect != Effect::Deny || decided.limits.is_empty(), "a refused call counts towards limits");
    if arguments == "{}" {
        assert_eq!(decided.effect, absent, "absent arguments and an empty object");
    }
    let Some(json) = Json::parse(arguments) else { return };
    let rewritten = json.rewritten();
    let again = set.decide(&question(Arguments::Known(&rewritten))).effect;
    assert_eq!(again, decided.effect, "{arguments} and {rewritten}");
}

/// A role without rules may use nothing, and nothing but a rule that permits makes an item usable.
fn deny_by_default(set: &PolicySet, question: &Question<'_>, effect: Effect) {
    let role = question.role.unwrap_or_default();
    let has_rules = set.roles().any(|known| known == role);
    if !has_rules || (!set.has_own_roles() && !matches!(role, "local" | "operator")) {
        assert_eq!(effect, Effect::Deny, "{role} has no rules");
    }
    let nobody = Question { role: None, ..*question };
    assert_eq!(set.decide(&nobody).effect, Effect::Deny, "a caller without a role");
    if effect != Effect::Deny {
        let reason = set.decide(question).reason;
        let permits = match reason {
            toolbus_policy::Reason::Rule(rule) => rule.effect != Effect::Deny,
            toolbus_policy::Reason::SomeRule => question.item == Item::Server,
            _ => false,
        };
        assert!(permits, "{effect} because {reason}");
    }
}
