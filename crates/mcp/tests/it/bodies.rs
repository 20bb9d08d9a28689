//! Serialization of the bodies on the bus: parsing and writing are inverse, and raw values keep every byte.

use toolbus_mcp::{Answer, ClientHello, HostEvent, HostReply, HostRequest, Id, Notify, Outcome, Rpc};

fn raw(text: &str) -> toolbus_mcp::Raw {
    toolbus_mcp::Raw::parse(text).expect("JSON")
}

fn check_request(request: HostRequest, text: &str) {
    assert_eq!(request.to_json(), text);
    assert_eq!(HostRequest::parse(text).expect("valid request").to_json(), text);
}

#[test]
fn requests_are_unchanged_by_parsing_and_writing() {
    check_request(
        HostRequest::Rpc(Rpc {
            server: "files".into(),
            session: "s1".into(),
            client: ClientHello::modern(),
            method: "tools/call".into(),
            params: Some(raw(r#"{"name":"read","arguments":{"n":1.0,"big":9007199254740993}}"#)),
            task: None,
            hand_back: false,
        }),
        r#"{"op":"rpc","server":"files","session":"s1","client":{"era":"modern"},"method":"tools/call","params":{"name":"read","arguments":{"n":1.0,"big":9007199254740993}}}"#,
    );
    check_request(
        HostRequest::Notify(Notify {
            server: "files".into(),
            session: "s1".into(),
            client: ClientHello::legacy(raw(r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#)),
            method: "notifications/roots/list_changed".into(),
            params: None,
        }),
        r#"{"op":"notify","server":"files","session":"s1","client":{"era":"legacy","initialize":{"protocolVersion":"2025-11-25","capabilities":{}}},"method":"notifications/roots/list_changed"}"#,
    );
    check_request(
        HostRequest::Answer(Answer {
            server: "files".into(),
            session: "s1".into(),
            id: Id::number(7),
            outcome: Outcome::Result(raw("null")),
        }),
        r#"{"op":"answer","server":"files","session":"s1","id":7,"result":null}"#,
    );
    check_request(HostRequest::Close { session: "s1".into() }, r#"{"op":"close","session":"s1"}"#);
}

#[test]
fn replies_are_unchanged_by_parsing_and_writing() {
    for text in [
        r#"{"rpc":{"result":{"content":[],"x":1.10}}}"#,
        r#"{"rpc":{"result":null}}"#,
        r#"{"rpc":{"error":{"code":-32602,"message":"?","data":[1e99]}}}"#,
        r#"{"rpc":{"cancelled":true}}"#,
    ] {
        assert_eq!(HostReply::parse(text).expect("valid reply").to_json(), text);
    }
    assert!(HostReply::parse(r#"{"error":"bad mcp request: ?"}"#).is_err());
    assert!(HostReply::parse(r#"{"rpc":{}}"#).is_err());
}

#[test]
fn events_are_unchanged_by_parsing_and_writing() {
    for text in [
        r#"{"event":"notification","server":"s","method":"notifications/message","params":{"level":"info"}}"#,
        r#"{"event":"request","server":"s","id":"a1","method":"elicitation/create","params":{}}"#,
        r#"{"event":"closed","server":"s","reason":"the server exited"}"#,
    ] {
        assert_eq!(HostEvent::parse(text).expect("valid event").to_json(), text);
    }
}

#[test]
fn errors_name_the_missing_member() {
    let error = HostRequest::parse(r#"{"op":"rpc","session":"s","client":{"era":"modern"},"method":"x"}"#);
    assert!(error.expect_err("server is missing").to_string().contains("server is missing"));
    assert!(HostRequest::parse(r#"{"op":"unknown","session":"s"}"#).is_err());
}
