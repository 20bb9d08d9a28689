//! Batches of live events of the original.

use toolbus_protocol::{ErrorCode, json};

#[test]
fn a_batch_of_events_has_1_to_64_live_events_with_consecutive_numbers() {
    let frame = |first: u64, last: u64, qos: &str, events: usize| {
        let events = vec!["1"; events].join(",");
        let batch = format!(r#"{{"first_seq":{first},"last_seq":{last},"qos":"{qos}","events":[{events}]}}"#);
        format!(r#"{{"kind":"publish_event_batch","to":"n","correlation_id":"c","batch":{batch}}}"#)
    };
    for (first, last, events) in [(1, 1, 1), (7, 70, 64), (u64::MAX - 1, u64::MAX - 1, 1)] {
        assert!(json::read_client(frame(first, last, "snapshot", events).as_bytes()).is_ok(), "{first} {last}");
    }
    for (first, last, qos, events) in [
        (1, 0, "ephemeral", 0),
        (1, 65, "ephemeral", 65),
        (0, 0, "ephemeral", 1),
        (1, 1, "ephemeral", 2),
        (u64::MAX, 0, "ephemeral", 2),
        (1, 1, "durable", 1),
    ] {
        let error = json::read_client(frame(first, last, qos, events).as_bytes()).expect_err("it is refused");
        assert_eq!(error.code(), ErrorCode::BadFrame, "{first} {last} {qos} {events}");
    }
}
