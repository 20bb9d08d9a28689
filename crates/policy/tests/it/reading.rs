//! Parsing: every error has a position and a hint, suspicious entries cause warnings, and no input panics.

use crate::set;
use proptest::prelude::*;
use toolbus_policy::PolicySet;

#[track_caller]
fn rejected(text: &str, expected: &str) {
    let error = PolicySet::read(text).expect_err("must be rejected");
    assert_eq!(format!("{error} / {}", error.hint()), expected);
}

#[test]
fn errors_have_a_position_and_a_hint() {
    rejected("[roles.a]\nallw = []", "line 2, column 1: unknown key roles.a.allw / did you mean allow?");
    rejected("[roles.a]\nallow = [1]", "line 2, column 10: roles.a.allow[0] has to be a string / correct the value");
    rejected(
        "[roles.a]\nallow = [\"x\",\n  \"a[\"]",
        "line 3, column 3: roles.a.allow[1]: \"a[\" is not a pattern: unclosed character class; missing ']' / \
         patterns are NAME or SERVER/NAME; * stands for anything",
    );
    rejected(
        "[roles.a]\nrate = \"fast\"",
        "line 2, column 8: roles.a.rate has to be a rate such as \"60/min\" or \"10/s\" / correct the value",
    );
    rejected(
        "[roles.a]\ndeadline = \"8785h\"",
        "line 2, column 12: roles.a.deadline has to be a time such as \"30s\" or \"5m\" / correct the value",
    );
    rejected(
        "[limits.\"files/*\"]\nconcurrency = 0",
        "line 2, column 15: limits.\"files/*\".concurrency has to be a whole number of at least 1 / correct the value",
    );
    rejected(
        "[limits.\"x\"]\nallow = []",
        "line 2, column 1: unknown key limits.x.allow / known keys: rate, concurrency, max_result, deadline",
    );
    rejected(
        "roles = 5",
        "line 1, column 9: roles has to be a table: [roles.NAME] with allow = [\"pattern\", …] / correct the value",
    );
    rejected(
        "[roles.\"a\\u200B\"]",
        "line 1, column 8: roles.\"a\\u{200b}\": invalid role: it has invisible characters / choose another name",
    );
    rejected(
        "[roles.a]\nsend = ['x', 'role:']",
        "line 2, column 14: roles.a.send[1]: \"role:\" is empty / patterns are NAME or SERVER/NAME; * stands for anything",
    );
    for (send, problem) in [("a[", "is not a pattern"), (&"a".repeat(1025), "is longer than 1024 bytes")] {
        let error =
            PolicySet::read(&format!("[roles.a]\nsend = ['{send}']")).expect_err("must be rejected").to_string();
        assert!(error.contains(problem), "{error}");
    }
    rejected("[roles.a\n", "line 1, column 9: unclosed table, expected `]` / correct the file at that position");
}

#[test]
fn errors_in_rules_and_conditions_have_a_position() {
    let rule = |body: &str| format!("[[roles.a.rules]]\n{body}");
    let rejected = |body: &str, expected: &str| {
        let error = PolicySet::read(&rule(body)).expect_err("must be rejected").to_string();
        assert_eq!(error, expected, "{body}");
    };
    rejected("match = ['x']", "line 1, column 1: roles.a.rules[0].effect is missing");
    rejected("effect = 'allow'", "line 1, column 1: roles.a.rules[0].match is missing");
    rejected("effect = 'maybe'", "line 2, column 10: roles.a.rules[0].effect has to be \"allow\", \"ask\" or \"deny\"");
    let when = |when: &str| format!("effect = 'allow'\nmatch = ['x']\nwhen = [{when}]");
    rejected(&when("{prefix = 'x'}"), "line 4, column 9: roles.a.rules[0].when[0].pointer is missing");
    rejected(
        &when("{pointer = '/x'}"),
        "line 4, column 9: roles.a.rules[0].when[0]: the condition on \"/x\" has no test: use equals, prefix, glob, min or max",
    );
    rejected(
        &when("{pointer = 'x', min = 1}"),
        "line 4, column 20: roles.a.rules[0].when[0].pointer: \"x\": a JSON pointer is empty or begins with /",
    );
    rejected(
        &when("{pointer = '', min = 1}"),
        "line 4, column 20: roles.a.rules[0].when[0].pointer: the empty pointer refers to the whole document, but a condition needs a single value",
    );
    rejected(
        &when("{pointer = '/x', min = 2, max = 1}"),
        "line 4, column 9: roles.a.rules[0].when[0]: min is larger than max, so no value matches",
    );
    rejected(
        &when("{pointer = '/x', min = nan}"),
        "line 4, column 32: roles.a.rules[0].when[0].min has to be a number",
    );
    rejected(
        &when("{pointer = '/x', glob = '['}"),
        "line 4, column 33: roles.a.rules[0].when[0].glob: \"[\" is not a pattern: unclosed character class; missing ']'",
    );
    rejected(&when("{pointer = '/x', prefx = 'a'}"), "line 4, column 26: unknown key roles.a.rules[0].when[0].prefx");
}

fn warnings(text: &str) -> Vec<String> {
    PolicySet::read(text).expect("valid rules").1.iter().map(ToString::to_string).collect()
}

#[test]
fn suspicious_entries_cause_warnings() {
    assert_eq!(
        warnings("[roles.a]\nallow = ['x', 'y']\ndeny = ['x']"),
        ["line 2, column 10: allow \"x\" in [roles.a] has no effect, because line 3 says deny for the same pattern"]
    );
    assert_eq!(
        warnings("[roles.a]\nallow = ['x']\ndeny = ['x',\n'x']"),
        ["line 2, column 10: allow \"x\" in [roles.a] has no effect, because line 3 says deny for the same pattern"]
    );
    assert_eq!(warnings("[roles.a]\ndeny = ['x']"), ["line 1, column 8: [roles.a] allows nothing"]);
    assert_eq!(warnings("[roles.a]\nsend = ['x']"), [""; 0]);
    assert_eq!(
        warnings("[[roles.a.rules]]\neffect = 'allow'\nmatch = ['x']\nwhen = []"),
        ["line 1, column 1: a rule of [roles.a] has no condition; `allow = [\"…\"]` is equivalent"]
    );
    assert_eq!(
        warnings("[roles.reader]\nallow = ['x']\n[roles.Reader]\nallow = ['y']"),
        ["line 3, column 8: the roles \"Reader\" and \"reader\" look alike, but are different"]
    );
    assert_eq!(
        warnings("[roles.Operator]\nallow = ['x']"),
        ["line 1, column 8: the roles \"Operator\" and \"operator\" look alike, but are different"]
    );
}

#[test]
fn unmatched_patterns_are_reported_with_a_suggestion() {
    let set = set("[roles.a]\nallow = ['raed_*', 'files/wriet', 'fiels/stat', 'stat', '**', 'zzz', 'file:///x/**']\n\
                   [limits.'files/sta']\nrate = '1/s'");
    let names = [("files", "read_file"), ("files", "write"), ("files", "stat")];
    let warnings: Vec<String> = set.unmatched(&names).iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "line 2, column 10: \"raed_*\" matches no known name; did you mean read_file?",
            "line 2, column 20: \"files/wriet\" matches no known name; did you mean files/write?",
            "line 2, column 35: \"fiels/stat\" matches no known name; did you mean files/stat?",
            "line 2, column 63: \"zzz\" matches no known name",
            "line 3, column 9: \"files/sta\" matches no known name; did you mean files/stat?",
        ]
    );
}

#[test]
fn of_equally_similar_names_the_first_in_the_alphabet_is_suggested() {
    let set = set("[roles.a]\nallow = ['raed_*']");
    for names in [[("files", "read_a"), ("files", "read_b")], [("files", "read_b"), ("files", "read_a")]] {
        let warnings: Vec<String> = set.unmatched(&names).iter().map(ToString::to_string).collect();
        assert_eq!(warnings, ["line 2, column 10: \"raed_*\" matches no known name; did you mean read_a?"]);
    }
}

#[test]
fn the_most_similar_name_is_suggested_and_a_pattern_without_wildcard_is_compared_as_a_whole() {
    let long = "read_everything_that_there_is_to_read_in_the_folder";
    for (pattern, names, suggestion) in [
        ("raed_*", [long, "zzz"], "; did you mean read_everything_that_there_is_to_read_in_the_folder?"),
        ("raed_", [long, "zzz"], ""),
        ("read_flie", ["read_file", "read_folder"], "; did you mean read_file?"),
        ("read_flie", ["read_folder", "read_file"], "; did you mean read_file?"),
    ] {
        let set = set(&format!("[roles.a]\nallow = ['{pattern}']"));
        let warnings: Vec<String> =
            set.unmatched(&names.map(|name| ("files", name))).iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("line 2, column 10: \"{pattern}\" matches no known name{suggestion}")]);
    }
}

/// Every prefix of a file is a partially written file.
#[test]
fn a_partially_written_file_never_panics() {
    let text = include_str!("../../../toolbus/src/config/template.toml").replace("#:", "");
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        drop(PolicySet::read(&text[..end]));
    }
}

proptest! {
    #[test]
    fn random_text_never_panics(text in any::<String>()) {
        drop(PolicySet::read(&text));
    }

    #[test]
    fn random_keywords_never_panic(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "[roles.a]", "[[roles.a.rules]]", "[limits.\"x/*\"]", "\n", "allow", "deny", "ask", "send", "approve",
                "when", "match", "effect", "pointer", "prefix", "glob", "min", "max", "equals", "rate", "concurrency",
                "=", "[", "]", "{", "}", ",", "\"a*\"", "\"/a/b\"", "\"allow\"", "\"60/min\"", "5", "-1", "nan", "0x10",
                "true", "\"{a,[\"", "\"é\u{200b}\"", "\"**\"", "1e400",
            ]),
            0..40,
        )
    ) {
        drop(PolicySet::read(&words.join(" ")));
    }

    #[test]
    fn a_random_pattern_never_panics(pattern in "[a-z*?{}\\[\\],/\\\\!:.-]{0,24}", name in "[a-z/:.]{0,12}") {
        let text = format!("[roles.a]\nallow = ['{pattern}']\nsend = ['{pattern}']");
        if let Ok((set, _)) = PolicySet::read(&text) {
            crate::call(&set, "a", "s", &name, "{}");
            set.may_message(Some("a"), &name, |_| Some("x"));
        }
    }
}
