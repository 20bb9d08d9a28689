//! Pointer lookups in documents, unusual and invalid ones included.

use super::*;

#[track_caller]
fn check(pointer: &str, document: &str, expected: Found<'_>) {
    let mut pointers = Pointers::default();
    let slot = pointers.add(pointer).expect("valid pointer");
    assert_eq!(pointers.find(document).map(|found| found[slot]), Ok(expected), "{pointer} in {document}");
}

#[test]
fn the_examples_of_rfc_6901() {
    let document = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
    for (pointer, value) in [
        ("", document),
        ("/foo", r#"["bar","baz"]"#),
        ("/foo/0", "\"bar\""),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/c%d", "2"),
        ("/e^f", "3"),
        ("/g|h", "4"),
        ("/i\\j", "5"),
        ("/k\"l", "6"),
        ("/ ", "7"),
        ("/m~0n", "8"),
    ] {
        check(pointer, document, Found::Value(value));
    }
    for pointer in ["/foo/2", "/foo/-", "/foo/00", "/foo/0/x", "/bar", "/foo/bar"] {
        check(pointer, document, Found::Nothing);
    }
}

#[test]
fn keys_are_unescaped_before_they_are_compared() {
    check("/path", r#" { "p\u0061th" : "x" } "#, Found::Value("\"x\""));
    check("/a", r#"{"b":"\"a\":1","c":{"a":2}}"#, Found::Nothing);
    check("/a/b", r#"{"x":[{"a":{"b":1}}],"a":{"x":{"b":2},"b": 3 }}"#, Found::Value("3"));
}

#[test]
fn duplicate_and_case_insensitive_keys_are_unclear() {
    let twice = Found::Unclear(ArgumentsProblem::KeyTwice);
    check("/a", r#"{"a":1,"a":2}"#, twice);
    check("/a", r#"{"a":1,"\u0061":2}"#, twice);
    check("/a/b", r#"{"a":{"b":1},"a":{"b":2}}"#, twice);
    check("/a/b", r#"{"a":{"b":1,"b":2}}"#, twice);
    let case = Found::Unclear(ArgumentsProblem::OtherCase);
    check("/path", r#"{"Path":1}"#, case);
    check("/path", r#"{"path":1,"PATH":2}"#, case);
    check("/path", r#"{"PATH":2,"path":1}"#, twice);
    check("/keys", "{\"\u{212a}ey\u{17f}\":1}", case);
    check("/path", r#"{"\ud800":1,"path":2}"#, twice);
    check("/path", r#"{"path":2,"\ud800":1}"#, Found::Unclear(ArgumentsProblem::NotUnicode));
    // Keys that no pointer refers to don't matter.
    check("/a", r#"{"b":1,"b":2,"c":{"a":1,"a":2},"a":3}"#, Found::Value("3"));
}

#[test]
fn documents_that_are_no_objects_are_rejected() {
    let mut pointers = Pointers::default();
    pointers.add("/a").expect("valid pointer");
    for document in ["[1]", "null", "\"a\"", "1", ""] {
        assert_eq!(pointers.find(document), Err(ArgumentsProblem::NotAnObject), "{document}");
    }
    for document in ["{", "{\"a\"", "{\"a\":", "{\"a\":\"", "{\"a\":{", "{\"b\":[}", "{1:2}", "{\"b\":,}", "{\"b\":,1}"]
    {
        assert_eq!(pointers.find(document), Err(ArgumentsProblem::NotJson), "{document}");
    }
}

#[test]
fn deep_documents_do_not_overflow_the_stack() {
    let deep = format!("{{\"x\":{}{},\"a\":1}}", "[".repeat(500_000), "]".repeat(500_000));
    check("/a", &deep, Found::Value("1"));
    let below = "/x".repeat(MAX_POINTER_DEPTH);
    let document = format!("{}1{}", "{\"x\":".repeat(100_000), "}".repeat(100_000));
    let mut pointers = Pointers::default();
    let slot = pointers.add(&below).expect("valid pointer");
    assert!(matches!(pointers.find(&document).expect("valid object")[slot], Found::Value(_)));
}

#[test]
fn invalid_pointers_are_rejected() {
    let rejected = |pointer: &str| Pointers::default().add(pointer).err();
    assert_eq!(rejected("a"), Some(PointerError::NoSlash));
    assert_eq!(rejected("/~2"), Some(PointerError::BadEscape));
    assert_eq!(rejected("/a~"), Some(PointerError::BadEscape));
    assert_eq!(rejected(&"/a".repeat(33)), Some(PointerError::TooDeep));
}

#[test]
fn one_pointer_may_be_a_prefix_of_another() {
    let mut pointers = Pointers::default();
    let (outer, inner) = (pointers.add("/a").expect("valid pointer"), pointers.add("/a/b").expect("valid pointer"));
    assert_eq!(pointers.add("/a").expect("valid pointer"), outer);
    let found = pointers.find(r#"{"a":{"b":1}}"#).expect("valid object");
    assert_eq!((found[outer], found[inner]), (Found::Value(r#"{"b":1}"#), Found::Value("1")));
}
