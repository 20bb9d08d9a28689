//! The one place that says whether a call may run once more when nobody knows if it had its effect. The operator's word
//! counts: about the tool, about the server, and, where the operator trusts the server, the server's own hints.

use crate::catalog::names::visible_name;
use crate::host::Host;
use crate::server::Server;
use std::collections::BTreeMap;
use toolbus_journal::Replay;
use toolbus_mcp::{Members, Raw, SomeTools};
use toolbus_upstream::{CallSettings, Join, Replay as Setting};

impl Host {
    /// `own` is the server's own name of the tool. What names no tool is a vendor's method, and nobody knows what it does.
    /// `was_safe`: what was decided when the call began. It counts while nobody knows yet what the server says of its tools.
    pub fn replay_of(&self, server: &Server, own: Option<&str>, was_safe: bool) -> Replay {
        let Some(own) = own else { return Replay::Never };
        let hints = || match self.catalog.annotations(server.index, own) {
            Some(annotations) => is_harmless(annotations.as_ref()),
            None => was_safe,
        };
        decided(&server.config.calls, own, hints)
    }
}

/// Which calls are never joined to another: the operator says so, or they may run twice anyway. Under the names that
/// workers see.
pub fn alone(settings: &CallSettings, prefix: Option<&str>, tools: &[&Raw]) -> SomeTools {
    let is_alone = |own: &str, annotations: Option<&Raw>| {
        let replay = decided(settings, own, || is_harmless(annotations));
        settings.join_of(own) == Join::Never || replay == Replay::Safe
    };
    let all = settings.join == Join::Never || settings.replay == Setting::Safe;
    let mut hints: BTreeMap<String, Option<Raw>> = BTreeMap::new();
    hints.extend(settings.tool_join.keys().chain(settings.tool_replay.keys()).map(|own| (own.clone(), None)));
    if settings.trust_hints {
        let listed = tools.iter().filter_map(|tool| Members::of(Some(tool)).ok());
        hints.extend(listed.filter_map(|mut tool| Some((tool.text("name")?, tool.remove("annotations")))));
    }
    let differ = hints.iter().filter(|(own, annotations)| is_alone(own, annotations.as_ref()) != all);
    SomeTools::new(all, differ.map(|(own, _)| visible_name(prefix, own)).collect())
}

fn decided(settings: &CallSettings, own: &str, is_harmless: impl FnOnce() -> bool) -> Replay {
    match (settings.replay_of(own), settings.replay) {
        (Some(Setting::Safe), _) | (None, Setting::Safe) => Replay::Safe,
        (None, Setting::Never) if settings.trust_hints && is_harmless() => Replay::Safe,
        (Some(Setting::Never), _) | (None, Setting::Never) => Replay::Never,
    }
}

/// It only reads, or a second time changes nothing more than the first.
fn is_harmless(annotations: Option<&Raw>) -> bool {
    let Ok(annotations) = Members::of(annotations.map(|raw| &**raw)) else { return false };
    let says = |hint: &str| annotations.get(hint).is_some_and(|value| value.get() == "true");
    says("readOnlyHint") || says("idempotentHint")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolbus_mcp::raw;

    #[track_caller]
    fn check(settings: &CallSettings, hints: &Value, expected: Replay) {
        assert_eq!(decided(settings, "tool", || is_harmless(Some(&raw(hints)))), expected, "{settings:?} {hints}");
    }

    #[test]
    fn nothing_is_run_again_unless_the_operator_says_so() {
        let usual = CallSettings::default();
        check(&usual, &json!({"readOnlyHint": true, "idempotentHint": true}), Replay::Never);
        check(&CallSettings { replay: Setting::Safe, ..usual.clone() }, &json!({}), Replay::Safe);
        assert_eq!(decided(&usual, "tool", || true), Replay::Never);
    }

    #[test]
    fn a_servers_hints_count_only_where_it_is_trusted() {
        let trusting = CallSettings { trust_hints: true, ..CallSettings::default() };
        check(&trusting, &json!({"readOnlyHint": true}), Replay::Safe);
        check(&trusting, &json!({"idempotentHint": true, "destructiveHint": true}), Replay::Safe);
        for not in [json!({}), json!({"readOnlyHint": false}), json!({"readOnlyHint": "true"}), json!([true])] {
            check(&trusting, &not, Replay::Never);
        }
    }

    #[test]
    fn what_is_said_of_a_tool_counts_before_all_else() {
        let mut settings = CallSettings { replay: Setting::Safe, trust_hints: true, ..CallSettings::default() };
        settings.tool_replay.insert("tool".to_owned(), Setting::Never);
        check(&settings, &json!({"readOnlyHint": true}), Replay::Never);
        let mut settings = CallSettings::default();
        settings.tool_replay.insert("tool".to_owned(), Setting::Safe);
        check(&settings, &json!({}), Replay::Safe);
    }

    #[test]
    fn workers_are_told_which_calls_are_never_joined() {
        let tools = [
            raw(&json!({"name": "look", "annotations": {"readOnlyHint": true}})),
            raw(&json!({"name": "write", "annotations": {"destructiveHint": true}})),
        ];
        let alone = |settings: &CallSettings| {
            let alone = alone(settings, Some("p"), &[&tools[0], &tools[1]]);
            ["look", "write", "other"].map(|tool| alone.contain(Some(&visible_name(Some("p"), tool))))
        };
        let usual = CallSettings::default();
        assert_eq!(alone(&usual), [false; 3]);
        assert_eq!(alone(&CallSettings { trust_hints: true, ..usual.clone() }), [true, false, false]);
        assert_eq!(alone(&CallSettings { replay: Setting::Safe, ..usual.clone() }), [true; 3]);
        let mut never = CallSettings { join: Join::Never, ..usual.clone() };
        assert_eq!(alone(&never), [true; 3]);
        never.tool_join.insert("write".to_owned(), Join::Gone);
        assert_eq!(alone(&never), [true, false, true]);
        let mut one = usual;
        one.tool_join.insert("write".to_owned(), Join::Never);
        one.tool_replay.insert("look".to_owned(), Setting::Safe);
        assert_eq!(alone(&one), [true, true, false]);
    }
}
