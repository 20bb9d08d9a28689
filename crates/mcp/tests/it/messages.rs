//! Messages are unchanged by parsing and writing.

use toolbus_mcp::{Era, Id, Message, MessageError, NameKey, Outcome, codes, meta, required_name, routed_name};

fn check_same(text: &str) {
    let message = Message::parse(text).expect("valid message");
    assert_eq!(message.to_json(), text);
}

#[test]
fn numbers_unknown_fields_and_order_survive() {
    check_same(r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"z":1.0,"a":1e400,"n":-0}}"#);
    check_same(
        r#"{"jsonrpc":"2.0","id":"x\u0041","result":{"content":[],"vendor":{"big":123456789012345678901234567890}}}"#,
    );
    check_same(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":50,"progressToken":"t"}}"#);
    check_same(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}"#);
    check_same(r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
}

#[test]
fn a_message_with_line_breaks_is_written_on_one_line() {
    let text = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\n \"a\": \"x\\ny\",\r\n \"b\": 2}}";
    let line = Message::parse(text).expect("valid message").to_json();
    assert!(!line.contains('\n') && !line.contains('\r'));
    let (before, after): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(text).expect("valid JSON"), serde_json::from_str(&line).expect("valid JSON"));
    assert_eq!(before, after);
}

#[test]
fn ids_are_compared_by_their_text() {
    assert_ne!(Id::number(1), Id::text("1"));
    assert_eq!(Id::number(1), Id::number(1));
}

#[test]
fn invalid_messages_have_the_right_error_code() {
    let code = |text: &str| Message::parse(text).expect_err("invalid message").to_rpc_error().code;
    assert_eq!(code("[]"), codes::INVALID_REQUEST);
    assert_eq!(code("{"), codes::PARSE_ERROR);
    assert_eq!(code("nonsense"), codes::PARSE_ERROR);
    assert_eq!(code(r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#), codes::INVALID_REQUEST);
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#), codes::INVALID_REQUEST);
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":7}"#), codes::INVALID_REQUEST);
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":3}"#), codes::INVALID_REQUEST);
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#), codes::INVALID_REQUEST);
}

#[test]
fn a_duplicate_member_is_rejected() {
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#;
    assert!(matches!(Message::parse(twice), Err(MessageError::Syntax(_))));
    let many = (0..40).map(|n| format!("\"k{n}\":0")).collect::<Vec<_>>().join(",");
    let hidden = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x",{many},"k3":1}}"#);
    assert!(matches!(Message::parse(hidden), Err(MessageError::Syntax(_))));
    let escaped = r#"{"jsonrpc":"2.0","id":1,"method":"x","\u006dethod":"y"}"#;
    assert!(matches!(Message::parse(escaped), Err(MessageError::Syntax(_))));
}

#[test]
fn the_era_is_determined_from_the_request() {
    let Ok(Message::Request(request)) = Message::parse(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
    ) else {
        panic!("not a request")
    };
    assert_eq!(Era::of_params(request.params.as_ref()), Era::Modern);
    assert_eq!(Era::of_params(None), Era::Legacy);
    let plain = meta::without(request.params.as_ref(), &[meta::PROTOCOL_VERSION]).expect("valid object");
    assert_eq!(plain.expect("params are kept").get(), "{}");
}

#[test]
fn the_name_for_routing_is_found() {
    let name = |method: &str, params: &str| {
        let params = toolbus_mcp::Raw::parse(params).expect("valid JSON");
        routed_name(method, Some(&params))
    };
    assert_eq!(name("tools/call", r#"{"name":"a"}"#), Some(NameKey::Tool("a".into())));
    assert_eq!(name("resources/read", r#"{"uri":"x:y"}"#), Some(NameKey::Uri("x:y".into())));
    let complete = r#"{"ref":{"type":"ref/prompt","name":"p"}}"#;
    assert_eq!(name("completion/complete", complete), Some(NameKey::Prompt("p".into())));
    assert_eq!(name("tools/call", r#"{"name":7}"#), None);
}

#[test]
fn a_required_name_that_is_missing_or_ambiguous_is_an_error() {
    let check = |method: &str, params: &str| {
        let params = toolbus_mcp::Raw::parse(params).expect("valid JSON");
        assert!(required_name(method, Some(&params)).is_err(), "{method} {params}");
    };
    check("tools/call", r#"{"name":"a","name":"b"}"#);
    check("tools/call", r#"{"name":"a","n\u0061me":"b"}"#);
    check("tools/call", r#"["a"]"#);
    check("tools/call", "{}");
    check("prompts/get", r#"{"name":"\ud800"}"#);
    check("completion/complete", r#"{"ref":{"type":"ref/new","name":"a"}}"#);
    check("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"a","name":"b"}}"#);
    assert!(required_name("tools/call", None).is_err());
    assert_eq!(required_name("vendor/method", None).ok(), Some(None));
}

#[test]
fn an_error_response_has_an_error_outcome() {
    let Ok(Message::Response(response)) = Message::parse(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#) else {
        panic!("not a response")
    };
    assert!(matches!(response.outcome, Outcome::Error(_)));
}
