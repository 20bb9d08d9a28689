//! Which calls are replay-safe: by the operator's settings per tool or per server, or by the server's own hints if the
//! operator trusts them. What follows from it is decided in `call::attempts` (a server died) and `journal::decide` (a host
//! was restarted).

use crate::catalog::names::visible_name;
use crate::host::Host;
use crate::server::Server;
use std::collections::BTreeMap;
use toolbus_call::ReplaySetting;
use toolbus_journal::Replay;
use toolbus_mcp::{Members, Raw, SomeTools};
use toolbus_upstream::{CallSettings, Join, Replay as Setting};

impl Host {
    /// `own`: the server's own name of the tool; `None` for vendor methods, whose effects are unknown.
    pub fn replay_setting(&self, server: &Server, own: Option<&str>) -> ReplaySetting {
        let Some(own) = own else { return ReplaySetting::Never };
        let [without, with] = [false, true].map(|is_harmless| decided(&server.config.calls, own, || is_harmless));
        match (without, with) {
            (Replay::Safe, _) => ReplaySetting::Safe,
            (_, Replay::Never) => ReplaySetting::Never,
            // The hints decide.
            _ => match self.catalog.annotations(server.index, own) {
                None => ReplaySetting::AsStarted,
                Some(annotations) if is_harmless(annotations.as_ref()) => ReplaySetting::Safe,
                Some(_) => ReplaySetting::Never,
            },
        }
    }
}

/// Tools whose calls never join others, because the operator says so or because they are replay-safe. Under the names
/// that workers see.
pub fn never_joined(settings: &CallSettings, prefix: Option<&str>, tools: &[&Raw]) -> SomeTools {
    let is_never_joined = |own: &str, annotations: Option<&Raw>| {
        let replay = decided(settings, own, || is_harmless(annotations));
        settings.join_of(own) == Join::Never || replay == Replay::Safe
    };
    let all = settings.join == Join::Never || settings.replay == Setting::Safe;
    subset(settings, prefix, tools, all, is_never_joined)
}

/// Tools whose calls may run twice, under the names that workers see.
pub fn replay_safe(settings: &CallSettings, prefix: Option<&str>, tools: &[&Raw]) -> SomeTools {
    let is_safe =
        |own: &str, annotations: Option<&Raw>| decided(settings, own, || is_harmless(annotations)) == Replay::Safe;
    subset(settings, prefix, tools, settings.replay == Setting::Safe, is_safe)
}

/// The tools for which `is_in` holds; `all`: what it says of tools without settings and hints.
fn subset(
    settings: &CallSettings,
    prefix: Option<&str>,
    tools: &[&Raw],
    all: bool,
    is_in: impl Fn(&str, Option<&Raw>) -> bool,
) -> SomeTools {
    let mut hints: BTreeMap<String, Option<Raw>> = BTreeMap::new();
    hints.extend(settings.tool_join.keys().chain(settings.tool_replay.keys()).map(|own| (own.clone(), None)));
    if settings.trust_hints {
        let listed = tools.iter().filter_map(|tool| Members::parse(tool.text()).ok());
        hints.extend(listed.filter_map(|mut tool| Some((tool.text("name")?, tool.remove("annotations")))));
    }
    let differ = hints.iter().filter(|(own, annotations)| is_in(own, annotations.as_ref()) != all);
    SomeTools::new(all, differ.map(|(own, _)| visible_name(prefix, own)).collect())
}

fn decided(settings: &CallSettings, own: &str, is_harmless: impl FnOnce() -> bool) -> Replay {
    match (settings.replay_of(own), settings.replay) {
        (Some(Setting::Safe), _) | (None, Setting::Safe) => Replay::Safe,
        (None, Setting::Never) if settings.trust_hints && is_harmless() => Replay::Safe,
        (Some(Setting::Never), _) | (None, Setting::Never) => Replay::Never,
    }
}

/// Whether the tool is annotated as read-only or idempotent.
fn is_harmless(annotations: Option<&Raw>) -> bool {
    let Ok(annotations) = Members::of(annotations) else { return false };
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
    fn nothing_is_replayed_unless_the_operator_allows_it() {
        let usual = CallSettings::default();
        check(&usual, &json!({"readOnlyHint": true, "idempotentHint": true}), Replay::Never);
        check(&CallSettings { replay: Setting::Safe, ..usual.clone() }, &json!({}), Replay::Safe);
        assert_eq!(decided(&usual, "tool", || true), Replay::Never);
    }

    #[test]
    fn a_servers_hints_count_only_if_it_is_trusted() {
        let trusting = CallSettings { trust_hints: true, ..CallSettings::default() };
        check(&trusting, &json!({"readOnlyHint": true}), Replay::Safe);
        check(&trusting, &json!({"idempotentHint": true, "destructiveHint": true}), Replay::Safe);
        for not in [json!({}), json!({"readOnlyHint": false}), json!({"readOnlyHint": "true"}), json!([true])] {
            check(&trusting, &not, Replay::Never);
        }
    }

    #[test]
    fn the_setting_of_a_tool_takes_precedence() {
        let mut settings = CallSettings { replay: Setting::Safe, trust_hints: true, ..CallSettings::default() };
        settings.tool_replay.insert("tool".to_owned(), Setting::Never);
        check(&settings, &json!({"readOnlyHint": true}), Replay::Never);
        let mut settings = CallSettings::default();
        settings.tool_replay.insert("tool".to_owned(), Setting::Safe);
        check(&settings, &json!({}), Replay::Safe);
    }

    #[test]
    fn the_manifest_names_tools_whose_calls_are_never_joined() {
        let tools = [
            raw(&json!({"name": "look", "annotations": {"readOnlyHint": true}})),
            raw(&json!({"name": "write", "annotations": {"destructiveHint": true}})),
        ];
        let safe = |settings: &CallSettings| {
            let safe = replay_safe(settings, Some("p"), &[&tools[0], &tools[1]]);
            ["look", "write", "other"].map(|tool| safe.contain(Some(&visible_name(Some("p"), tool))))
        };
        let never_joined = |settings: &CallSettings| {
            let never_joined = never_joined(settings, Some("p"), &[&tools[0], &tools[1]]);
            ["look", "write", "other"].map(|tool| never_joined.contain(Some(&visible_name(Some("p"), tool))))
        };
        let usual = CallSettings::default();
        assert_eq!(never_joined(&usual), [false; 3]);
        assert_eq!(never_joined(&CallSettings { trust_hints: true, ..usual.clone() }), [true, false, false]);
        assert_eq!(never_joined(&CallSettings { replay: Setting::Safe, ..usual.clone() }), [true; 3]);
        let mut never = CallSettings { join: Join::Never, ..usual.clone() };
        assert_eq!(never_joined(&never), [true; 3]);
        never.tool_join.insert("write".to_owned(), Join::Gone);
        assert_eq!(never_joined(&never), [true, false, true]);
        assert_eq!(safe(&never), [false; 3]);
        assert_eq!(safe(&CallSettings { trust_hints: true, ..usual.clone() }), [true, false, false]);
        assert_eq!(safe(&CallSettings { replay: Setting::Safe, ..usual.clone() }), [true; 3]);
        let mut one = usual;
        one.tool_join.insert("write".to_owned(), Join::Never);
        one.tool_replay.insert("look".to_owned(), Setting::Safe);
        assert_eq!(never_joined(&one), [true, true, false]);
    }
}
