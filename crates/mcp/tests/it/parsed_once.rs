//! A message is parsed once, and its parts are slices of it.

use bytestring::ByteString;
use toolbus_mcp::{HostReply, HostRequest, Members, Message, Outcome, Raw, Request, Rpc, meta, raw};

const PARAMS: &str = "{ \"name\":\"t\",\n\"arguments\" : {\"n\":1.50}, \"_meta\":{\"progressToken\":7}}";

fn request(params: &str) -> Request {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params} }}"#);
    let Ok(Message::Request(request)) = Message::parse(text) else { panic!("not a request: {params}") };
    request
}

fn rpc(body: ByteString) -> Rpc {
    let Ok(HostRequest::Rpc(rpc)) = HostRequest::parse(body) else { panic!("not a call") };
    rpc
}

fn body(params: &str) -> ByteString {
    format!(r#"{{"op":"rpc","server":"s","session":"k","client":{{"era":"modern"}},"method":"tools/call","params":{params}}}"#)
        .into()
}

#[test]
fn the_parts_of_a_call_are_slices_of_its_message() {
    let body = body(PARAMS);
    let params = rpc(body.clone()).params.expect("params");
    assert_eq!(params.get(), PARAMS);
    let arguments = params.members().expect("an object").get("arguments").expect("arguments").text();
    let within = |part: &str| body.as_bytes().as_ptr_range().contains(&part.as_ptr());
    assert!(within(params.get()) && within(&arguments) && within(params.clone().get()));
    assert!(!within(params.detached().get()));
}

#[test]
fn the_members_of_a_call_are_parsed_once() {
    for params in [rpc(body(PARAMS)).params, request(PARAMS).params] {
        let params = params.expect("params");
        let again = params.clone();
        assert!(std::ptr::eq(params.members().expect("an object"), again.members().expect("an object")));
        let own = params.members().expect("an object").get(meta::META).expect("_meta").members().expect("an object");
        let again = params.members().expect("an object").get(meta::META).expect("_meta").members();
        assert!(std::ptr::eq(own, again.expect("an object")));
    }
}

#[test]
fn params_are_read_as_if_they_were_parsed_alone() {
    let unusual = [
        "{}",
        " { } ",
        "[1]",
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"\u0061":{"b":[]}}"#,
        r#"{"a":1,"\ud800":2}"#,
        PARAMS,
    ];
    for text in unusual {
        let alone = Raw::parse(text).expect("JSON");
        for params in [rpc(body(text)).params, request(text).params] {
            let params = params.expect("params");
            assert_eq!(params.get(), text.trim());
            let show = |members: Result<&Members, _>| match members {
                Ok(members) => format!("{members:?}"),
                Err(error) => format!("{error}"),
            };
            assert_eq!(show(params.members()), show(alone.members()), "{text}");
        }
    }
}

#[test]
fn results_of_any_kind_are_read() {
    for text in [r#"{"content":[],"isError":true}"#, "{}", "null", "[{}]", "7", r#"{"a":1,"a":2}"#] {
        let answer = HostReply::parse(format!(r#"{{"rpc":{{"result":{text}}}}}"#));
        let Ok(HostReply::Rpc(Outcome::Result(result))) = answer else { panic!("no result: {text}") };
        assert_eq!(result.get(), text);
        let message = Message::parse(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#));
        let Ok(Message::Response(response)) = message else { panic!("no response: {text}") };
        let Outcome::Result(result) = response.outcome else { panic!("no result: {text}") };
        assert_eq!(result.get(), text);
    }
}

#[test]
fn edits_keep_the_text_of_other_members_and_fit_on_one_line() {
    let mut request = request("{\"a\":[1,\n2.0],\"_meta\":{\"x\":{\r}}}");
    let once = meta::set(request.params.as_ref(), meta::PROGRESS_TOKEN, raw("t")).expect("an object");
    let twice = meta::set(Some(&once), "y", raw(&1)).expect("an object");
    request.params = Some(twice.clone());
    let line = Message::from(request).to_json();
    let params = r#"{"a":[1, 2.0],"_meta":{"x":{ },"progressToken":"t","y":1}}"#;
    assert_eq!(line, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#));
    assert_eq!(twice.get().replace(['\n', '\r'], " "), params);
}
