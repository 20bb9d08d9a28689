//! Owners of names: first come, rules, pools, what names cover.

use super::*;

fn rules(text: &str) -> PolicySet {
    PolicySet::read(text).expect("valid rules").0
}

const TOOL: NameKind = NameKind::Item(ListKind::Tools);
const PROMPT: NameKind = NameKind::Item(ListKind::Prompts);
const RESOURCE: NameKind = NameKind::Item(ListKind::Resources);
const TEMPLATE: NameKind = NameKind::Item(ListKind::ResourceTemplates);

fn claim_as(
    owners: &mut NameOwners,
    rules: &PolicySet,
    host: &str,
    kind: NameKind,
    name: &str,
) -> Result<(), HoldReason> {
    let covered = Covered::by_others(owners, &owners.owner_for(rules, host));
    owners.claim(rules, &covered, &Claim { host, kind, name })
}

fn claim(owners: &mut NameOwners, host: &str, name: &str) -> Result<(), HoldReason> {
    claim_as(owners, &rules(""), host, TOOL, name)
}

#[test]
fn the_first_host_keeps_a_name() {
    let mut owners = NameOwners::default();
    assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
    assert_eq!(claim(&mut owners, "aaa", "echo"), Err(HoldReason::OwnedBy("bbb".into())));
    assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
    assert_eq!(claim_as(&mut owners, &rules(""), "aaa", PROMPT, "echo"), Ok(()), "another list");
}

#[test]
fn names_that_look_alike_are_one_name() {
    let mut owners = NameOwners::default();
    assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
    for name in ["Echo", "ｅcho", " echo", "echo\u{a0}", "ec\nho"] {
        assert_eq!(claim(&mut owners, "aaa", name), Err(HoldReason::OwnedBy("bbb".into())), "{name:?}");
    }
    assert_eq!(claim(&mut owners, "aaa", "echo_2"), Ok(()));
    for (name, other) in [("straße", "STRASSE"), ("ΟΔΟΣ", "οδος"), ("ﬁle", "FILE")] {
        assert_eq!(claim(&mut owners, "bbb", name), Ok(()));
        assert_eq!(claim(&mut owners, "aaa", other), Err(HoldReason::OwnedBy("bbb".into())), "{name} {other}");
    }
    let stored = r#"{"hosts":["bbb"],"owners":[["tools/list","straße","bbb"]]}"#;
    let mut of_an_earlier_version = NameOwners::from_text(stored.as_bytes()).expect("the stored form");
    let taken = claim(&mut of_an_earlier_version, "aaa", "STRASSE");
    assert_eq!(taken, Err(HoldReason::OwnedBy("bbb".into())));
}

#[test]
fn a_rule_of_the_operator_moves_a_name() {
    let mut owners = NameOwners::default();
    assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
    let rules = rules("[hosts.aaa]\noffers = ['echo']");
    let mut check = |host, name, expected| {
        assert_eq!(claim_as(&mut owners, &rules, host, TOOL, name), expected, "{host} {name}");
    };
    check("aaa", "echo", Ok(()));
    check("bbb", "echo", Err(HoldReason::GrantedTo("aaa".into())));
    check("aaa", "other", Err(HoldReason::NotGranted));
    assert_eq!(claim(&mut owners, "bbb", "echo"), Err(HoldReason::OwnedBy("aaa".into())), "without the rule");
}

#[test]
fn the_members_of_a_pool_own_their_names_together() {
    let mut owners = NameOwners::default();
    assert!(owners.add_host("aaa") && owners.add_host("bbb"));
    let rules = rules("[hosts.aaa]\npool = 'render'\n[hosts.bbb]\npool = 'render'");
    let claim = |owners: &mut NameOwners, host, name| claim_as(owners, &rules, host, TOOL, name);
    assert_eq!(claim(&mut owners, "aaa", "early"), Ok(()));
    owners.set_pool("aaa", Some("render"));
    owners.set_pool("bbb", Some("render"));
    for (host, name) in [("aaa", "echo"), ("bbb", "echo"), ("bbb", "early")] {
        assert_eq!(claim(&mut owners, host, name), Ok(()), "{host} {name}");
    }
    let outside = || Err(HoldReason::OwnedByPool("render".into()));
    assert_eq!(claim(&mut owners, "ccc", "echo"), outside());
    assert_eq!(claim(&mut owners, "ccc", "early"), outside());
    assert_eq!(NameOwners::from_text(owners.to_text().as_bytes()).as_ref(), Some(&owners));
    // A host that leaves the pool has none of its names; the last one that leaves frees them.
    let before = owners.clone();
    owners.set_pool("aaa", None);
    assert_eq!(claim(&mut owners, "aaa", "echo"), outside());
    owners.remove_host("bbb");
    assert_eq!(owners.hosts_that_differ(&before), ["aaa", "bbb", "pool/render"].into());
    assert_eq!(claim(&mut owners, "aaa", "echo"), Ok(()));
    assert_eq!(claim(&mut owners, "ccc", "echo"), Err(HoldReason::OwnedBy("aaa".into())));
}

#[test]
fn the_names_of_a_host_are_limited_and_freed_with_it() {
    let mut owners = NameOwners::default();
    assert!(owners.add_host("bbb") && !owners.add_host("bbb") && owners.add_host("aaa"));
    for number in 0..MAX_NAMES_PER_HOST {
        assert_eq!(claim(&mut owners, "bbb", &format!("tool{number}")), Ok(()));
    }
    assert_eq!(claim(&mut owners, "bbb", "one more"), Err(HoldReason::TooMany));
    assert_eq!(claim(&mut owners, "bbb", "tool7"), Ok(()));
    assert_eq!(NameOwners::from_text(owners.to_text().as_bytes()).as_ref(), Some(&owners));
    assert!(owners.rank("bbb") < owners.rank("aaa"));
    owners.remove_host("bbb");
    assert_eq!(claim(&mut owners, "aaa", "tool7"), Ok(()));
    assert_eq!(owners.hosts(), ["aaa"]);
}

/// Claims in this order: host, kind, name, and the name of another host that keeps it from the host.
#[track_caller]
fn check_claims(text: &str, claims: &[(&str, NameKind, &str, Option<&str>)]) {
    let (mut owners, rules) = (NameOwners::default(), rules(text));
    for (host, kind, name, held_by) in claims {
        let held_by_other = match claim_as(&mut owners, &rules, host, *kind, name) {
            Err(HoldReason::CoveredBy(covering)) => Some(covering.name),
            Err(HoldReason::OwnedBy(owner) | HoldReason::GrantedTo(owner)) => Some(owner),
            Err(other) => panic!("{host} {name}: {other:?}"),
            Ok(()) => None,
        };
        assert_eq!(held_by_other.as_deref(), *held_by, "{host} {name}");
    }
}

#[test]
fn a_template_owns_the_uris_that_it_matches() {
    check_claims(
        "",
        &[
            ("aaa", RESOURCE, "file:///t/early", None),
            ("bbb", TEMPLATE, "file:///t/{x}", None),
            ("aaa", RESOURCE, "file:///t/early", None),
            ("aaa", RESOURCE, "file:///u/secret", None),
            ("aaa", RESOURCE, "file:///t/secret", Some("file:///t/{x}")),
            ("aaa", RESOURCE, "FILE:///u/../%74/secret", Some("file:///t/{x}")),
            ("aaa", RESOURCE, "file:///t/../secret", Some("file:///t/{x}")),
            ("bbb", RESOURCE, "file:///t/secret", None),
            ("aaa", TEMPLATE, "file:///t/{y}", Some("file:///t/{x}")),
            ("aaa", TEMPLATE, "file:///./t/{+y}{?z}", Some("file:///t/{x}")),
            ("aaa", TEMPLATE, "file:///{+any}", Some("file:///t/{x}")),
            ("aaa", TEMPLATE, "{+any}", Some("file:///t/{x}")),
            ("aaa", TEMPLATE, "file:///u/{y}", None),
            ("bbb", TEMPLATE, "file:///u/{x}/more", Some("file:///u/{y}")),
        ],
    );
}

#[test]
fn a_template_of_any_scheme_collides_with_every_resource() {
    check_claims(
        "",
        &[
            ("bbb", RESOURCE, "note://1", None),
            ("aaa", TEMPLATE, "{+any}", Some("note://1")),
            ("bbb", TEMPLATE, "{+any}", None),
        ],
    );
}

#[test]
fn uris_with_the_same_normal_form_are_one_name() {
    check_claims("", &[("bbb", RESOURCE, "file:///pub/a", None), ("aaa", RESOURCE, "file:///pub/b", None)]);
    for other in ["file:///pub/%61", "file:///pub/./a", "file:/pub/a", "file:///pub/a#x", "file:///pub/b/../a"] {
        check_claims("", &[("bbb", RESOURCE, "file:///pub/a", None), ("aaa", RESOURCE, other, Some("bbb"))]);
        check_claims("", &[("bbb", RESOURCE, other, None), ("aaa", RESOURCE, "file:///pub/a", Some("bbb"))]);
        check_claims("[hosts.bbb]\noffers = ['file:///pub/a']", &[("aaa", RESOURCE, other, Some("bbb"))]);
    }
}

#[test]
fn a_namespace_owns_the_methods_in_it() {
    let methods = NameKind::Namespace;
    check_claims(
        "",
        &[
            ("bbb", methods, "acme/search/*", None),
            ("aaa", methods, "acme/search/*", Some("bbb")),
            ("aaa", methods, "Acme/*", Some("acme/search/*")),
            ("aaa", methods, "acme/search/deep/*", Some("acme/search/*")),
            ("aaa", methods, "acme/searching/*", None),
            ("bbb", methods, "acme/*", Some("acme/searching/*")),
        ],
    );
    check_claims(
        "[hosts.aaa]\noffers = ['acme/*']",
        &[("bbb", methods, "acme/*", Some("aaa")), ("aaa", methods, "acme/*", None), ("aaa", methods, "x/*", None)],
    );
}

#[test]
fn the_operator_may_give_away_what_a_template_covers() {
    check_claims(
        "[hosts.aaa]\noffers = ['file:///t/secret']",
        &[("bbb", TEMPLATE, "file:///t/{x}", None), ("aaa", RESOURCE, "file:///t/secret", None)],
    );
}

#[test]
fn the_templates_of_a_host_are_limited() {
    let mut owners = NameOwners::default();
    let template = |number: usize| format!("file:///{number}/{{x}}");
    for number in 0..MAX_COVERING_PER_HOST {
        assert_eq!(claim_as(&mut owners, &rules(""), "bbb", TEMPLATE, &template(number)), Ok(()));
    }
    let one_more = claim_as(&mut owners, &rules(""), "bbb", TEMPLATE, &template(MAX_COVERING_PER_HOST));
    assert_eq!(one_more, Err(HoldReason::TooMany));
    assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
}
