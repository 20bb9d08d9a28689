//! Which rule decides.

use crate::{call, listed, question, set};
use toolbus_base::Share;
use toolbus_policy::{Arguments, Effect, Item, PolicySet, Question, Reason};

const RULES: &str = r#"
[roles.reader]
allow = ["read_*", "files/stat", "file:///pub/**"]
deny = ["files/read_secret", "file:///pub/private/**"]
ask = ["files/write_*", "read_slowly"]
[roles.boss]
allow = ["**"]
[roles.locked]
allow = []
"#;

#[track_caller]
fn check(role: &str, server: &str, item: Item<'_>, effect: Effect) {
    let set = set(RULES);
    let called = set.decide(&question(role, server, item, Arguments::Absent));
    assert_eq!(called.is_shown(), effect != Effect::Deny, "{role} {server} {item:?}");
    assert_eq!(called.effect, effect, "{role} {server} {item:?}: {}", called.reason);
    assert_eq!(listed(&set, role, server, item), effect, "{role} {server} {item:?} in a list");
}

#[test]
fn a_role_may_use_only_what_its_entry_allows() {
    check("reader", "files", Item::Tool("read_file"), Effect::Allow);
    check("reader", "other", Item::Tool("read_file"), Effect::Allow);
    check("reader", "files", Item::Tool("stat"), Effect::Allow);
    check("reader", "other", Item::Tool("stat"), Effect::Deny);
    check("reader", "files", Item::Tool("write_file"), Effect::Ask);
    check("reader", "other", Item::Tool("write_file"), Effect::Deny);
    check("reader", "files", Item::Prompt("read_me"), Effect::Allow);
    check("reader", "files", Item::Resource("file:///pub/a/b.txt"), Effect::Allow);
    check("reader", "files", Item::Resource("file:///etc/passwd"), Effect::Deny);
    check("boss", "files", Item::Resource("file:///etc/passwd"), Effect::Allow);
}

#[test]
fn deny_beats_ask_beats_allow() {
    check("reader", "files", Item::Tool("read_secret"), Effect::Deny);
    check("reader", "other", Item::Tool("read_secret"), Effect::Allow);
    check("reader", "files", Item::Tool("read_slowly"), Effect::Ask);
}

#[test]
fn a_pattern_with_a_server_matches_only_that_server() {
    check("reader", "evil", Item::Tool("files/stat"), Effect::Deny);
    check("reader", "files", Item::Tool("files/stat"), Effect::Deny);
    let set = set("[roles.r]\nallow = [\"*_fs/read\"]");
    assert_eq!(call(&set, "r", "my_fs", "read", "{}"), Effect::Allow);
    assert_eq!(call(&set, "r", "evil", "my_fs/read", "{}"), Effect::Deny, "a star must not reach into the name");
}

#[test]
fn path_traversal_leaves_no_allowed_and_enters_no_denied_directory() {
    for uri in [
        "file:///pub/../etc/passwd",
        "file:///pub/%2e%2E/etc/passwd",
        "file:///pub/%252e%252e/etc/passwd",
        "file:///pub/x/..%2f..%2Fetc",
        "file:///pub/..\\etc",
        "file:///pub/x/../private/key",
        "file:///pub/priv%61te/key",
        "file:///pub//private/key",
        "FILE:///pub/private/key",
        "file:/pub/private/key",
        "file://localhost/pub/private/key",
    ] {
        check("reader", "files", Item::Resource(uri), Effect::Deny);
    }
    check("reader", "files", Item::Resource("file:///pub/a/../b"), Effect::Allow);
    check("boss", "files", Item::Resource("file:///pub/../etc"), Effect::Allow);
}

#[test]
fn a_query_or_host_in_the_uri_does_not_bypass_a_deny() {
    let set = set("[roles.r]\nallow = ['**']\ndeny = ['file:///etc/passwd', 'db://x/secret', 'note:secret']\n\
         [roles.s]\nallow = ['file:///pub/a', 'db://x/get?id=*']");
    let read = |role, uri| set.decide(&question(role, "f", Item::Resource(uri), Arguments::Absent)).effect;
    for uri in [
        "file:///etc/passwd?x",
        "file:///etc/passwd?a/../b",
        "file:///etc/passwd%3fx#y",
        "file://elsewhere/etc/passwd",
        "file://elsewhere/x/../etc/passwd?x",
        "db://x/secret?x",
        "db://x/./secret?x#y",
        "db://x/secret#y?x",
        "note:secret?x",
    ] {
        assert_eq!(read("r", uri), Effect::Deny, "{uri}");
    }
    assert_eq!(read("r", "db://x/other?secret"), Effect::Allow);
    assert_eq!(read("s", "db://x/get?id=1"), Effect::Allow, "an allow may be about the query");
    assert_eq!(read("s", "file:///pub/a?x"), Effect::Deny);
    assert_eq!(read("s", "file://elsewhere/pub/a"), Effect::Deny);
}

#[test]
fn path_traversal_to_a_resource_that_needs_approval_needs_approval() {
    let set =
        set("[roles.r]\nallow = [\"file:///**\"]\nask = [\"file:///etc/**\"]\n[roles.s]\nask = [\"file:///etc/**\"]");
    let read = |role, uri| set.decide(&question(role, "f", Item::Resource(uri), Arguments::Absent)).effect;
    assert_eq!(read("r", "file:///tmp/../etc/x"), Effect::Ask);
    assert_eq!(read("r", "file:///etc/../tmp/x"), Effect::Ask);
    assert_eq!(read("r", "file:///tmp/x"), Effect::Allow);
    assert_eq!(read("s", "file:///etc/../tmp/x"), Effect::Deny);
}

#[test]
fn unknown_and_missing_roles_and_empty_entries_are_denied() {
    for role in ["stranger", "locked", "Reader", "", "reader ", "ｒeader"] {
        for item in [Item::Tool("read_file"), Item::Resource("x://y"), Item::Prompt("p"), Item::Server] {
            check(role, "files", item, Effect::Deny);
        }
    }
    let set = set(RULES);
    let without_role =
        Question { role: None, server: "files", item: Item::Tool("read_file"), arguments: Arguments::Absent };
    let decision = set.decide(&without_role);
    assert!(matches!((decision.effect, decision.reason), (Effect::Deny, Reason::NoRole)));
}

#[test]
fn a_role_sees_the_servers_that_a_rule_may_allow() {
    let set =
        set("[roles.r]\nallow = [\"a/x\", \"b*/y\", \"gone/z\"]\nask = [\"c/x\"]\ndeny = [\"d/x\", \"gone/*\"]\n\
                   [roles.all]\nallow = [\"x\"]\ndeny = [\"a/**\"]\n[roles.none]\nallow = [\"**\"]\ndeny = [\"*\"]");
    let sees = |role, server| listed(&set, role, server, Item::Server) == Effect::Allow;
    for (role, server, expected) in [
        ("r", "a", true),
        ("r", "bee", true),
        ("r", "c", true),
        ("r", "d", false),
        ("r", "gone", false),
        ("r", "other", false),
        ("all", "other", true),
        ("all", "a", false),
        ("none", "a", false),
    ] {
        assert_eq!(sees(role, server), expected, "{role} {server}");
    }
}

#[test]
fn a_decision_has_its_rule_and_position() {
    let set = set(RULES);
    let decision = set.decide(&question("reader", "files", Item::Tool("read_secret"), Arguments::Absent));
    let rule = decision.rule().expect("a rule");
    assert_eq!(rule.to_string(), "deny \"files/read_secret\" in [roles.reader]");
    assert_eq!((rule.position.line, rule.position.column), (4, 9));
    let decision = set.decide(&question("reader", "files", Item::Tool("zzz"), Arguments::Absent));
    assert_eq!(decision.reason.to_string(), "no rule of the role allows it");
    let items = [Item::Tool("x"), Item::Resource("x"), Item::Prompt("x"), Item::Server];
    assert_eq!(items.map(Item::noun), ["tool", "resource", "prompt", "server"]);
}

#[test]
fn without_roles_local_and_operator_may_use_everything_and_others_nothing() {
    for set in [set("listen = \"x\""), set("[roles]"), PolicySet::built_in(), PolicySet::default()] {
        assert_eq!(call(&set, "local", "s", "t", "{}"), Effect::Allow);
        assert_eq!(call(&set, "operator", "s", "t", "{}"), Effect::Allow);
        assert_eq!(call(&set, "worker", "s", "t", "{}"), Effect::Deny);
        assert!(set.may_approve(Some("operator")) && !set.may_approve(Some("local")) && !set.may_approve(None));
        assert!(!set.has_own_roles() && !set.is_everyone());
        let set = set.for_shared_token();
        assert!(set.is_everyone());
        assert_eq!(call(&set, "worker", "s", "t", "{}"), Effect::Allow);
    }
    assert!(!set(RULES).for_shared_token().is_everyone());
}

#[test]
fn the_operator_keeps_its_built_in_rule_unless_the_file_has_an_entry_for_it() {
    let set = set(RULES);
    assert!(set.has_own_roles());
    assert_eq!(call(&set, "operator", "s", "t", "{}"), Effect::Allow);
    assert_eq!(call(&set, "local", "s", "t", "{}"), Effect::Deny);
    assert!(set.may_approve(Some("operator")));
    assert!(set.may_message(Some("operator"), "anybody", |_| None::<&str>));
    assert_eq!(set.named_roles().collect::<Vec<_>>(), ["boss", "locked", "reader"]);
    assert_eq!(set.roles().collect::<Vec<_>>(), ["boss", "locked", "operator", "reader"]);
    let own = crate::set("[roles.operator]\napprove = false\nsend = [\"a\"]");
    assert_eq!(call(&own, "operator", "s", "t", "{}"), Effect::Deny);
    assert!(!own.may_approve(Some("operator")));
    assert!(!own.may_message(Some("operator"), "b", |_| None::<&str>));
}

#[test]
fn messages_may_be_sent_only_to_listed_names_and_roles() {
    let set =
        set("[roles.r]\nsend = [\"planner\", \"team-*\", \"box#in\", \"role:writer\"]\n[roles.quiet]\nallow = [\"x\"]");
    let role_of = |name: &str| (name == "w").then_some("writer");
    let may = |role, to| set.may_message(role, to, role_of);
    assert!(
        may(Some("r"), "planner")
            && may(Some("r"), "planner#inbox")
            && may(Some("r"), "team-7")
            && may(Some("r"), "w#x")
            && may(Some("r"), "box#in")
    );
    assert!(
        !may(Some("r"), "plannerx")
            && !may(Some("r"), "writer")
            && !may(Some("r"), "box")
            && !may(Some("r"), "role:writer")
            && !may(Some("r"), "#w")
    );
    assert!(!may(Some("quiet"), "planner") && !may(None, "planner") && !may(Some("stranger"), "planner"));
}

#[test]
fn the_strictest_limit_counts_and_all_are_returned() {
    let text = "[roles.r]\nallow = [\"**\"]\nrate = \"60/min\"\nmax_result = \"1MiB\"\ndeadline = \"5m\"\n\
                [limits.\"files/*\"]\nrate = \"10/s\"\nconcurrency = 2\nmax_result = \"64KiB\"\ndeadline = \"30s\"\n\
                [limits.\"read_*\"]\nmax_result = \"128KiB\"";
    let set = set(text);
    let decision = set.decide(&question("r", "files", Item::Tool("read_x"), Arguments::Absent));
    assert_eq!(decision.limits.len(), 3);
    let (size, limit) = decision.max_result().expect("a limit");
    assert_eq!((size, limit.kind.to_string().as_str(), limit.position.line), (65_536, "[limits.\"files/*\"]", 6));
    assert_eq!(decision.deadline().expect("a limit").0.as_secs(), 30);
    let decision = set.decide(&question("r", "other", Item::Tool("x"), Arguments::Absent));
    assert_eq!(decision.max_result().expect("a limit").0, 1 << 20);
    assert!(set.decide(&question("r", "files", Item::Tool("x"), Arguments::Unknown)).limits.is_empty());
    assert!(set.decide(&question("nobody", "files", Item::Tool("x"), Arguments::Absent)).limits.is_empty());
}

#[test]
fn each_setting_of_a_role_makes_a_limit() {
    for (setting, limits) in
        [("", 0), ("rate = '1/s'", 1), ("concurrency = 1", 1), ("max_result = 1", 1), ("deadline = '8784h'", 1)]
    {
        let set = set(&format!("[roles.r]\nallow = ['x']\n{setting}"));
        let decision = set.decide(&question("r", "s", Item::Tool("x"), Arguments::Absent));
        assert_eq!(decision.limits.len(), limits, "{setting}");
    }
}

#[test]
fn no_spelling_of_a_uri_evades_the_limit_of_its_resource() {
    let set = set("[roles.r]\nallow = ['**']\n[limits.'db://x/big']\nrate = '1/min'\n\
                   [limits.'db://all/**']\nconcurrency = 1");
    let limits = |uri| set.decide(&question("r", "f", Item::Resource(uri), Arguments::Absent)).limits.len();
    for uri in ["db://x/big", "db://x/big?x", "db://x/./big", "db://x/a/../big?x#y", "db://x/%62ig", "db://x/big#y"] {
        assert_eq!(limits(uri), 1, "{uri}");
    }
    assert_eq!(limits("db://all/a/../b?x"), 1, "a limit that matches several spellings applies once");
    assert_eq!(limits("db://x/bigger"), 0);
}

#[test]
fn may_use_all_is_false_if_anything_is_denied_or_needs_approval() {
    let rules = "[roles.all]\nallow = ['**']\n[roles.one]\nallow = ['one/**']\ndeny = ['two/*']\n\
                 [roles.asked]\nallow = ['**']\nask = ['one/x']\n[roles.some]\nallow = ['one/a*']";
    let (set, _) = PolicySet::read(rules).expect("valid rules");
    let may = |role: &str| ["one", "two"].map(|server| set.may_use_all(Some(role), server));
    let expected = [("all", [true, true]), ("one", [true, false]), ("asked", [false, true]), ("some", [false, false])];
    for (role, servers) in expected {
        assert_eq!(may(role), servers, "{role}");
    }
    assert!(!set.may_use_all(None, "one") && PolicySet::everyone().may_use_all(None, "one"));
}

#[test]
fn may_use_everything_needs_an_allow_of_all_servers_and_no_other_effect() {
    let set =
        set("[roles.all]\nallow = ['**', 'x']\n[roles.server]\nallow = ['one/**']\n[roles.some]\nallow = ['a*']\n\
                   [roles.asked]\nallow = ['*']\nask = ['x']\n[roles.denied]\nallow = ['*']\ndeny = ['x']\n\
                   [[roles.if.rules]]\neffect = 'allow'\nmatch = ['*']\nwhen = [{ pointer = '/x', equals = 1 }]");
    for role in ["all", "server", "some", "asked", "denied", "if", "stranger"] {
        assert_eq!(set.may_use_everything(Some(role)), role == "all", "{role}");
    }
    assert!(!set.may_use_everything(None) && PolicySet::everyone().may_use_everything(None));
}

#[test]
fn a_role_speaks_of_the_servers_that_a_permitting_rule_names_or_matches_as_a_whole() {
    let set = set("[roles.r]\nallow = ['x', 'one/x']\nask = ['two/*']\ndeny = ['three/x']\n[roles.all]\nask = ['*']");
    let speaks = |role| ["one", "two", "three"].map(|server| set.speaks_of_server(role, server));
    assert_eq!(speaks(Some("r")), [true, true, false]);
    assert_eq!(speaks(Some("all")), [true; 3]);
    assert_eq!([speaks(Some("stranger")), speaks(None)], [[false; 3]; 2]);
    assert!(PolicySet::everyone().speaks_of_server(None, "one"));
}

#[test]
fn a_share_applies_only_to_its_role() {
    let set = set("[roles.r]\nshare = '25%'\n[roles.s]\nallow = ['x']");
    assert_eq!(set.share(Some("r")), Share::parse("25%"));
    assert_eq!([set.share(Some("s")), set.share(Some("stranger")), set.share(None)], [None; 3]);
}

#[test]
fn rules_made_by_code_name_tools_literally() {
    let names = ["read", "a*", "x/y", "q?[z]{b,c}\\d", ""];
    let set = PolicySet::of_tools([("reader", &names[..]), ("locked", &[])]);
    let check = |set: &PolicySet, role: Option<&str>, tool: &str, effect| {
        let question = |arguments| Question { role, server: "s", item: Item::Tool(tool), arguments };
        assert_eq!(set.decide(&question(Arguments::Absent)).effect, effect, "{role:?} {tool:?}");
        assert_eq!(set.decide(&question(Arguments::Unknown)).effect, effect, "{role:?} {tool:?} in a list");
    };
    for name in names {
        check(&set, Some("reader"), name, Effect::Allow);
        check(&set, Some("locked"), name, Effect::Deny);
    }
    for other in ["ab", "y", "READ", "reads", "qa[z]{b,c}\\d", "q?zb\\d", "q?[z]{b,c}d"] {
        check(&set, Some("reader"), other, Effect::Deny);
    }
    check(&set, Some("unlisted"), "read", Effect::Deny);
    check(&set, None, "read", Effect::Deny);
    assert!(!set.clone().for_shared_token().is_everyone(), "roles made by code are kept for a shared token");
    let set = set.with_others_unrestricted();
    check(&set, Some("unlisted"), "anything", Effect::Allow);
    check(&set, None, "anything", Effect::Allow);
    check(&set, Some("reader"), "anything", Effect::Deny);
    check(&set, Some("locked"), "read", Effect::Deny);
    assert!(set.may_use_all(None, "s") && !set.may_use_all(Some("locked"), "s"));
    assert!(!set.may_approve(None), "to use everything is not to approve");
}
