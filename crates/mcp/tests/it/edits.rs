//! Changing one member keeps every byte of the others.

use proptest::prelude::*;
use toolbus_mcp::{Members, Message, meta, raw};

#[test]
fn a_changed_member_keeps_its_position() {
    let mut members = Members::parse(r#"{"a": 1.50, "b":[1, 2],"c":{"x":1e2}}"#).expect("valid object");
    members.set("b", raw("new"));
    members.remove("nothing");
    assert_eq!(members.into_raw().get(), r#"{"a":1.50,"b":"new","c":{"x":1e2}}"#);
}

#[test]
fn a_missing_inner_object_is_created() {
    let params = meta::set(None, meta::PROGRESS_TOKEN, raw(&7)).expect("valid object");
    assert_eq!(params.get(), r#"{"_meta":{"progressToken":7}}"#);
    assert_eq!(meta::get(Some(&params), meta::PROGRESS_TOKEN).expect("token is set").get(), "7");
}

#[test]
fn a_meta_that_is_no_object_is_an_error() {
    let params = toolbus_mcp::Raw::parse(r#"{"_meta":3}"#).expect("valid JSON");
    assert!(meta::set(Some(&params), meta::PROGRESS_TOKEN, raw(&7)).is_err());
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(".{0,6}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_object_is_unchanged_by_parsing_and_writing(map in prop::collection::btree_map(".{0,8}", any_json(), 0..24)) {
        let value = serde_json::Value::Object(map.into_iter().collect());
        let text = serde_json::to_string_pretty(&value).expect("valid JSON");
        let again = Members::parse(text.as_str()).expect("valid object").into_raw();
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("valid JSON");
        prop_assert_eq!(parse(&text), parse(again.get()));
    }

    #[test]
    fn any_params_are_found_in_the_text_of_their_message(map in prop::collection::btree_map(".{0,8}", any_json(), 0..24)) {
        let value = serde_json::Value::Object(map.into_iter().collect());
        let text = serde_json::to_string_pretty(&value).expect("valid JSON");
        let message = Message::parse(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\": {text} }}"));
        let Ok(Message::Notification(notification)) = message else { panic!("a notification") };
        let params = notification.params.expect("params");
        prop_assert_eq!(params.get(), &text);
        let alone = Members::parse(text.as_str()).expect("valid object");
        prop_assert_eq!(format!("{:?}", params.members().expect("valid object")), format!("{alone:?}"));
    }
}
