//! Tests of the merged catalog.

use super::*;
use serde_json::json;
use toolbus_mcp::raw;

fn config(name: &str, prefix: Option<&str>) -> ServerConfig {
    let mut config = ServerConfig::stdio(name, "true", &[]);
    config.prefix = prefix.map(ToOwned::to_owned);
    config
}

fn tools(names: &[&str]) -> Lists {
    Lists { tools: names.iter().map(|name| raw(&json!({"name": name}))).collect(), ..Lists::default() }
}

fn eras() -> Arc<Eras> {
    Arc::new(Eras { modern: None, legacy: Some(raw(&json!({"capabilities": {}}))), legacy_untried: false })
}

fn shown(manifest: &HostManifest) -> Vec<Vec<String>> {
    let name = |tool: &Raw| Members::of(Some(tool)).expect("an object").text("name").expect("a name");
    manifest.servers.iter().map(|server| server.tools.iter().map(name).collect()).collect()
}

#[test]
fn the_first_configured_server_keeps_a_name_in_any_start_order() {
    for order in [[0, 1], [1, 0]] {
        let catalog = Catalog::new(&[config("one", None), config("two", None)]);
        for server in order {
            catalog.set_up(server, eras(), tools(&["same", if server == 0 { "a" } else { "b" }]), vec![]);
        }
        let manifest = catalog.manifest(None, &PolicySet::everyone());
        assert_eq!(shown(&manifest), [vec!["same", "a"], vec!["b"]]);
        assert_eq!(manifest.problems.len(), 1);
        for word in ["\"one\"", "\"two\"", "same", "prefix"] {
            assert!(manifest.problems[0].contains(word), "{word} is missing: {}", manifest.problems[0]);
        }
    }
}

#[test]
fn a_prefix_resolves_a_collision_and_too_long_names_are_reported() {
    let catalog = Catalog::new(&[config("one", None), config("two", Some("two_"))]);
    catalog.set_up(0, eras(), tools(&["same"]), vec![]);
    catalog.set_up(1, eras(), tools(&["same", &"x".repeat(61)]), vec![]);
    let manifest = catalog.manifest(None, &PolicySet::everyone());
    assert_eq!(shown(&manifest)[1][0], "two_same");
    assert_eq!(manifest.problems.len(), 1);
    assert!(manifest.problems[0].contains("65 characters"), "{}", manifest.problems[0]);
    assert_eq!(catalog.tool("two_same"), Some(1));
}

#[test]
fn a_server_that_is_down_keeps_its_tools_and_the_reason() {
    let catalog = Catalog::new(&[config("one", None), config("two", None)]);
    assert!(
        catalog
            .manifest(None, &PolicySet::everyone())
            .servers
            .iter()
            .all(|server| server.state == ServerState::Starting)
    );
    catalog.set_up(0, eras(), tools(&["a"]), vec![]);
    catalog.set_down(0, "it exited with code 1".to_owned(), vec!["boom".to_owned()]);
    let manifest = catalog.manifest(None, &PolicySet::everyone());
    assert_eq!(manifest.servers[0].state, ServerState::Down);
    assert_eq!(manifest.servers[0].down.as_ref().expect("a reason").stderr, ["boom"]);
    assert_eq!(shown(&manifest)[0], ["a"]);
    assert_eq!(manifest.servers[1].state, ServerState::Starting);
}

#[test]
fn each_role_has_its_own_manifest() {
    let rules = PolicySet::read("[roles.reader]\nallow = ['a']").expect("patterns").0;
    let catalog = Catalog::new(&[config("one", None)]);
    let is_incomplete = |role| catalog.manifest(role, &rules).incomplete;
    assert!(is_incomplete(Some("reader")) && !is_incomplete(None), "the server may have `a`");
    catalog.set_up(0, eras(), tools(&["a", "b"]), vec![]);
    assert!(!is_incomplete(Some("reader")));
    assert_eq!(shown(&catalog.manifest(Some("reader"), &rules)), [["a"]]);
    let nothing = catalog.manifest(None, &rules);
    assert!(nothing.servers.is_empty() && !nothing.incomplete);
}

#[test]
fn a_name_that_some_clients_refuse_is_reported_once() {
    let catalog = Catalog::new(&[config("one", Some("one.")), config("two", None)]);
    let refused = |server, names: &[&str]| -> Vec<String> {
        catalog.change(server, |entry| entry.lists = tools(names));
        catalog.lock().newly_refused_names(server).into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(refused(0, &["read"]), ["one.read"]);
    assert_eq!(refused(0, &["read", "write"]), ["one.write"]);
    assert_eq!(refused(1, &["fine", "one.read"]), [""; 0]);
}

#[test]
fn problems_are_bounded() {
    let names: Vec<String> = (0..5000).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let catalog = Catalog::new(&[config("one", None), config("two", None)]);
    catalog.set_up(0, eras(), tools(&names), vec![]);
    catalog.set_up(1, eras(), tools(&names), vec![]);
    let problems = catalog.manifest(None, &PolicySet::everyone()).problems;
    assert_eq!(problems.len(), names::MAX_PROBLEMS + 1);
    assert_eq!(problems.last().map(String::as_str), Some("and 4980 more problems"));
}

#[test]
fn only_a_fresh_list_lifts_a_hold() {
    let pins = Arc::new(Pins::in_memory());
    let catalog = Catalog::new(&[config("one", None)]).with_pins(Arc::clone(&pins));
    catalog.set_up(0, eras(), tools(&["a"]), vec![]);
    let server = PinnedServer { name: "one", mode: None };
    // A page that a worker requested, newer than the catalog's list.
    assert!(pins.holds_back(server, Some(Era::Legacy), "a", &raw(&json!({"name": "a", "description": "other"}))));
    assert_eq!(shown(&catalog.manifest(None, &PolicySet::everyone()))[0], [""; 0]);
    catalog.recheck_pins();
    catalog.set_down(0, "gone".to_owned(), vec![]);
    catalog.manifest(None, &PolicySet::everyone());
    assert!(pins.is_held(server, "a"), "an old list lifted the hold");
    catalog.set_up(0, eras(), tools(&["a"]), vec![]);
    assert_eq!(
        (shown(&catalog.manifest(None, &PolicySet::everyone()))[0].len(), pins.is_held(server, "a")),
        (1, false)
    );
}

#[test]
fn roles_see_servers_they_may_use_and_problems_only_with_all_rights() {
    let rules = "[roles.fetcher]\nallow = ['fetch_*']\n[roles.user]\nallow = ['one/*', 'two/fetch_*', 'none/*']\n\
                 [roles.boss]\nallow = ['**']\n[roles.deputy]\nallow = ['**']\ndeny = ['b']";
    let rules = PolicySet::read(rules).expect("patterns").0;
    let catalog = Catalog::new(&[config("one", None), config("two", None), config("none", None)]);
    catalog.set_up(0, eras(), tools(&["fetch_a", "b"]), vec!["odd".to_owned()]);
    catalog.set_up(1, eras(), tools(&["b"]), vec![]);
    catalog.set_up(2, eras(), Lists::default(), vec![]);
    let seen = |role: &str| {
        let manifest = catalog.manifest(Some(role), &rules);
        let names: Vec<String> = manifest.servers.into_iter().map(|server| server.name).collect();
        (names.join(" "), !manifest.problems.is_empty())
    };
    assert_eq!(seen("fetcher"), ("one".to_owned(), false));
    assert_eq!(seen("user"), ("one none".to_owned(), false));
    assert_eq!(seen("boss"), ("one two none".to_owned(), true));
    assert_eq!(seen("deputy"), ("one none".to_owned(), false));
}
