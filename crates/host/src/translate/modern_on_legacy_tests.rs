//! Tests of the translation for a modern client on a legacy server.

use super::*;

fn json(value: serde_json::Value) -> Raw {
    raw(&value)
}

fn envelope(extra: serde_json::Value) -> Envelope {
    let mut own = json!({meta::PROTOCOL_VERSION: "2026-07-28", meta::CLIENT_CAPABILITIES: {"elicitation": {"form": {}}},
        meta::CLIENT_INFO: {"name": "c", "version": "1"}});
    own.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    Envelope::of(Some(&json(json!({"_meta": own})))).expect("an envelope")
}

#[test]
fn the_envelope_becomes_the_clients_initialize() {
    let expected = r#"{"capabilities":{"elicitation":{"form":{}}},"clientInfo":{"name":"c","version":"1"},"protocolVersion":"2025-11-25"}"#;
    assert_eq!(envelope(json!({})).initialize().get(), expected);
}

#[test]
fn an_incomplete_envelope_or_another_version_is_refused() {
    let refuse = |params: serde_json::Value| Envelope::of(Some(&json(params))).expect_err("refused");
    assert_eq!(refuse(json!({})).code, -32602);
    assert_eq!(refuse(json!({"_meta": {meta::PROTOCOL_VERSION: "2026-07-28"}})).code, -32602);
    let error = refuse(json!({"_meta": {meta::PROTOCOL_VERSION: "2099-01-01", meta::CLIENT_CAPABILITIES: {}}}));
    assert_eq!(error.code, -32022);
    assert_eq!(error.data.expect("data")["requested"], "2099-01-01");
}

#[test]
fn params_lose_the_envelope_and_are_otherwise_unchanged() {
    let text = r#"{"name":"t","arguments":{"n":12345678901234567890,"f":1.0},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":7,"x.y/z":[1.10]},"requestState":"s","inputResponses":{}}"#;
    let given = Raw::parse(text).expect("JSON");
    let expected =
        r#"{"name":"t","arguments":{"n":12345678901234567890,"f":1.0},"_meta":{"progressToken":7,"x.y/z":[1.10]}}"#;
    assert_eq!(params(Some(&given)).expect("an object").expect("params").get(), expected);
    let bare = json(json!({"_meta": {meta::PROTOCOL_VERSION: "2026-07-28", meta::CLIENT_CAPABILITIES: {}}}));
    assert!(params(Some(&bare)).expect("an object").is_none());
}

#[test]
fn discover_is_answered_from_initialize() {
    let answer =
        json(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}, "tasks": {}},
        "serverInfo": {"name": "s", "version": "2"}, "instructions": "Be kind."}));
    let value: serde_json::Value = serde_json::from_str(discover(&answer).expect("an object").get()).expect("JSON");
    let expected = json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}},
        "instructions": "Be kind.", "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "_meta": {SERVER_INFO: {"name": "s", "version": "2"}}});
    assert_eq!(value, expected);
}

#[test]
fn results_get_the_required_members_only() {
    let translated = |method: &str, text: &str| {
        let given = Raw::parse(text).expect("JSON");
        result(method, &given).expect("an object").get().to_owned()
    };
    let call = translated("tools/call", r#"{"content":[{"type":"text","text":"a"}],"isError":false,"z":1.0}"#);
    assert_eq!(call, r#"{"content":[{"type":"text","text":"a"}],"isError":false,"z":1.0,"resultType":"complete"}"#);
    let list = translated("tools/list", r#"{"tools":[],"nextCursor":"c"}"#);
    assert_eq!(list, r#"{"tools":[],"nextCursor":"c","resultType":"complete","ttlMs":0,"cacheScope":"private"}"#);
}

#[test]
fn resource_not_found_becomes_invalid_params_and_other_errors_are_unchanged() {
    let missing = json(json!({"code": -32002, "message": "no", "data": {"uri": "a://b"}}));
    assert_eq!(error(&missing).get(), r#"{"code":-32602,"data":{"uri":"a://b"},"message":"no"}"#);
    let other = json(json!({"code": -32603, "message": "no"}));
    assert_eq!(error(&other).get(), other.get());
}

#[test]
fn logs_need_a_level_and_progress_gets_the_current_token() {
    let log = || Some(json(json!({"level": "info", "data": "x"})));
    let quiet = envelope(json!({}));
    assert!(matches!(notification(&quiet, "notifications/message", log()), Destination::Dropped));
    let loud = envelope(json!({meta::LOG_LEVEL: "debug", "progressToken": "new"}));
    assert!(matches!(notification(&loud, "notifications/message", log()), Destination::Call(Some(_))));
    let stern = envelope(json!({meta::LOG_LEVEL: "error"}));
    assert!(matches!(notification(&stern, "notifications/message", log()), Destination::Dropped));

    let progress = Some(json(json!({"progressToken": 1, "progress": 50})));
    let Destination::Call(Some(params)) = notification(&loud, "notifications/progress", progress) else {
        panic!("dropped")
    };
    assert_eq!(params.get(), r#"{"progress":50,"progressToken":"new"}"#);
    assert!(matches!(notification(&loud, "notifications/tools/list_changed", None), Destination::Listeners));
}

#[test]
fn a_servers_request_becomes_a_result_and_the_repetition_has_the_answer() {
    let ask = InputRequest {
        key: "r1".to_owned(),
        method: "elicitation/create".to_owned(),
        params: Some(json(json!({"message": "Name?"}))),
    };
    assert_eq!(
        input_required(&[ask], "S").get(),
        r#"{"resultType":"input_required","inputRequests":{"r1":{"method":"elicitation/create","params":{"message":"Name?"}}},"requestState":"S"}"#
    );
    let again = json(json!({"name": "t", "requestState": "S", "inputResponses": {"r1": {"action": "decline"}}}));
    let repetition = Repetition::of(Some(&again)).expect("well-formed").expect("a repetition");
    assert_eq!(repetition.state, "S");
    assert_eq!(repetition.responses["r1"].get(), r#"{"action":"decline"}"#);
    assert!(Repetition::of(Some(&json(json!({"name": "t"})))).expect("well-formed").is_none());
    assert_eq!(Repetition::of(Some(&json(json!({"requestState": 5})))).expect_err("no text").code, -32602);
}
