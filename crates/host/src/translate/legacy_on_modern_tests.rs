//! Tests of the translation for a legacy client on a modern server.

use super::*;
use serde_json::Value;

fn json(value: Value) -> Raw {
    raw(&value)
}

fn value(raw: &Raw) -> Value {
    serde_json::from_str(raw.get()).expect("JSON")
}

fn discovered() -> Raw {
    json(json!({"supportedVersions": ["2026-07-28"], "resultType": "complete", "ttlMs": 0, "cacheScope": "public",
        "capabilities": {"tools": {}, "logging": {}, "extensions": {TASKS_EXTENSION: {}}}, "instructions": "Hi.",
        "_meta": {SERVER_INFO: {"name": "s", "version": "3"}}}))
}

#[test]
fn initialize_is_answered_from_discover_in_the_clients_version() {
    let answer = |version: &str| {
        let initialize = json(json!({"protocolVersion": version, "capabilities": {}}));
        value(&initialize_result(&discovered(), &initialize, "files").expect("objects"))
    };
    let expected = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "logging": {}},
        "serverInfo": {"name": "s", "version": "3"}, "instructions": "Hi."});
    assert_eq!(answer("2025-06-18"), expected);
    assert_eq!(answer("1999-01-01")["protocolVersion"], "2025-11-25");
}

#[test]
fn each_request_carries_the_clients_capabilities_and_info() {
    let initialize = json(json!({"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}},
        "clientInfo": {"name": "c", "version": "1"}}));
    let identity = ClientIdentity::of_initialize(&initialize).expect("an object");
    let given = Raw::parse(r#"{"name":"t","arguments":{"n":1.0},"_meta":{"progressToken":5}}"#);
    let params = identity.add_envelope(Some(&given.expect("JSON")), Some(LogLevel::Warning)).expect("an object");
    assert!(params.get().starts_with(r#"{"name":"t","arguments":{"n":1.0},"_meta":{"progressToken":5,"#));
    let expected = json!({"progressToken": 5, meta::PROTOCOL_VERSION: "2026-07-28",
        meta::CLIENT_CAPABILITIES: {"sampling": {}}, meta::CLIENT_INFO: {"name": "c", "version": "1"},
        meta::LOG_LEVEL: "warning"});
    assert_eq!(value(&params)["_meta"], expected);
    let bare = identity.add_envelope(None, None).expect("nothing is an empty object");
    assert_eq!(value(&bare)["_meta"].as_object().expect("an object").len(), 3);
}

#[test]
fn results_lose_members_of_the_modern_era() {
    let given = Raw::parse(
        r#"{"tools":[{"name":"a","ttlMs":1}],"resultType":"complete","ttlMs":5,"cacheScope":"public","x":1.0}"#,
    )
    .expect("JSON");
    let ModernResult::Complete(result) = result(&given).expect("an object") else { panic!("complete") };
    assert_eq!(result.get(), r#"{"tools":[{"name":"a","ttlMs":1}],"x":1.0}"#);
}

#[test]
fn results_lose_the_servers_description_of_itself() {
    let legacy = |given: &str| {
        let given = Raw::parse(given).expect("JSON");
        let ModernResult::Complete(result) = result(&given).expect("an object") else { panic!("complete") };
        result.get().to_owned()
    };
    let stamp = r#""io.modelcontextprotocol/serverInfo":{"name":"s","version":"3"}"#;
    assert_eq!(legacy(&format!(r#"{{"tools":[],"_meta":{{{stamp}}}}}"#)), r#"{"tools":[]}"#);
    assert_eq!(
        legacy(&format!(r#"{{"tools":[],"_meta":{{"a/b":1.0,{stamp}}}}}"#)),
        r#"{"tools":[],"_meta":{"a/b":1.0}}"#
    );
    assert_eq!(legacy(r#"{"tools":[],"_meta":{}}"#), r#"{"tools":[],"_meta":{}}"#);
}

#[test]
fn input_required_becomes_requests_and_their_answers_a_repetition() {
    let given = json(json!({"resultType": "input_required", "requestState": "opaque==",
        "inputRequests": {"who": {"method": "elicitation/create", "params": {"message": "Name?"}},
                          "where": {"method": "roots/list"}}}));
    let ModernResult::InputRequired { requests, state } = result(&given).expect("an object") else {
        panic!("input required")
    };
    let asked: Vec<_> = requests.iter().map(|request| (request.key.as_str(), request.method.as_str())).collect();
    assert_eq!(asked, [("where", "roots/list"), ("who", "elicitation/create")]);

    let answers = vec![("who".to_owned(), json(json!({"action": "accept", "content": {"name": "Al"}})))];
    let again = repetition(Some(&json(json!({"name": "t"}))), answers, state).expect("an object");
    let expected = json!({"name": "t", "inputResponses": {"who": {"action": "accept", "content": {"name": "Al"}}},
        "requestState": "opaque=="});
    assert_eq!(value(&again), expected);
}

#[test]
fn a_failed_elicitation_is_a_cancel_and_other_failures_end_the_call() {
    let error = || Outcome::Error(json(json!({"code": -1, "message": "rejected"})));
    let cancelled = input_response("elicitation/create", error()).expect("a cancel is an answer");
    assert_eq!(cancelled.get(), r#"{"action":"cancel"}"#);
    assert!(input_response("sampling/createMessage", error()).is_err());
}
