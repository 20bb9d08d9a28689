//! Property tests: every frame round-trips through both framings, and no input causes a panic.

use crate::samples;
use crate::strategies::{agent, broker_frame, client_frame, envelope};
use crate::wire::{
    compact_broker, compact_client, json_broker, json_client, opened, read_compact_broker, read_compact_client,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use toolbus_protocol::{Body, BrokerFrame, ClientFrame, Envelope, InboxMessage, Timestamp, compact, json};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn client_frames_round_trip_through_json(frame in client_frame(), me in agent()) {
        prop_assert_eq!(json_client(&json::write_client(&frame, &me)), frame);
    }

    #[test]
    fn broker_frames_round_trip_through_json(frame in broker_frame()) {
        prop_assert_eq!(json_broker(&json::write_broker(&frame).expect("the body is JSON")), frame);
    }

    #[test]
    fn client_frames_round_trip_through_the_compact_framing(frames in vec(client_frame(), 0..4), me in agent()) {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| compact_client(frame, &me)).collect();
        prop_assert_eq!(read_compact_client(&bytes).expect("frames"), frames);
    }

    #[test]
    fn broker_frames_round_trip_through_the_compact_framing(frames in vec(broker_frame(), 0..4)) {
        let bytes: Vec<u8> = frames.iter().flat_map(compact_broker).collect();
        prop_assert_eq!(read_compact_broker(&bytes).expect("frames"), frames);
    }

    #[test]
    fn the_content_of_a_message_excludes_only_its_creation_time(a in envelope(), b in envelope(), at in any::<i64>()) {
        let renewed = |envelope: &Envelope| InboxMessage { created_at: Timestamp(at), ..opened(envelope) };
        let again = renewed(&a).seal();
        prop_assert_eq!(again.content(), a.content());
        prop_assert_eq!(a.content() == b.content(), renewed(&a) == renewed(&b));
    }

    #[test]
    fn frames_round_trip_from_json_to_the_compact_framing(frame in client_frame(), me in agent()) {
        let by_json = json_client(&json::write_client(&frame, &me));
        let bytes = compact_client(&by_json, &me);
        prop_assert_eq!(read_compact_client(&bytes).expect("a frame"), [frame]);
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn arbitrary_bytes_never_cause_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        read_everything(&bytes);
    }

    #[test]
    fn arbitrary_content_of_a_known_frame_never_causes_a_panic(
        opcode in proptest::sample::select(vec![0x01u8, 0x02, 0x03, 0x04, 0x41, 0x42, 0x7b]),
        content in vec(any::<u8>(), 0..100),
    ) {
        read_everything(&crate::wire::framed(opcode, &content));
    }

    #[test]
    fn mutated_frames_never_cause_a_panic(
        which in any::<prop::sample::Index>(),
        mutations in vec((any::<prop::sample::Index>(), any::<Mutation>()), 1..5),
    ) {
        let frames = written_samples();
        let mut bytes = which.get(&frames).clone();
        for (at, mutation) in mutations {
            mutation.apply(&mut bytes, at);
        }
        read_everything(&bytes);
    }
}

/// A mutation of an encoded frame.
#[derive(Debug, Clone)]
enum Mutation {
    Set(u8),
    Insert(u8),
    Remove,
    Cut,
}

impl Arbitrary for Mutation {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        prop_oneof![
            any::<u8>().prop_map(Self::Set),
            any::<u8>().prop_map(Self::Insert),
            Just(Self::Remove),
            Just(Self::Cut)
        ]
        .boxed()
    }
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>, at: prop::sample::Index) {
        if bytes.is_empty() {
            return;
        }
        let at = at.index(bytes.len());
        match self {
            Self::Set(byte) => bytes[at] = byte,
            Self::Insert(byte) => bytes.insert(at, byte),
            Self::Remove => drop(bytes.remove(at)),
            Self::Cut => bytes.truncate(at),
        }
    }
}

fn written_samples() -> Vec<Vec<u8>> {
    let client = samples::client().into_iter().flat_map(|sample| {
        let text = json::write_client(&sample.frame, &sample.me).into_bytes();
        [text, compact_client(&sample.frame, &sample.me).to_vec()]
    });
    let broker = samples::broker().into_iter().flat_map(|(name, frame)| {
        let text = json::write_broker(&frame).expect(name).into_bytes();
        [text, compact_broker(&frame).to_vec()]
    });
    client.chain(broker).collect()
}

/// Decodes bytes with every decoder. Decoded frames must round-trip, or be refused because of an invalid body.
fn read_everything(bytes: &[u8]) {
    let _ = json::message_id_of(bytes);
    let _ = Envelope::from_sealed(Bytes::copy_from_slice(bytes)).map(|envelope| opened(&envelope));
    let _ = Body::parse(bytes.to_vec());
    if let Ok(frame) = json::read_client(bytes) {
        use_client(&frame);
    }
    if let Ok(frame) = json::read_broker(bytes) {
        assert!(json::write_broker(&frame).is_ok(), "a frame decoded from JSON can be encoded as JSON: {frame:?}");
        use_broker(&frame);
    }
    let mut input = Bytes::copy_from_slice(bytes);
    while let Some(frame) = compact::read_client(&mut input).transpose() {
        let _ = frame.map(|frame| use_client(&frame));
    }
    let mut input = Bytes::copy_from_slice(bytes);
    while let Some(frame) = compact::read_broker(&mut input).transpose() {
        let _ = frame.map(|frame| use_broker(&frame));
    }
}

fn use_client(frame: &ClientFrame) {
    let _ = json::write_client(frame, &samples::worker());
    let bytes = compact_client(frame, &samples::worker());
    assert_eq!(read_compact_client(&bytes).expect("a frame"), std::slice::from_ref(frame));
}

fn use_broker(frame: &BrokerFrame) {
    let _ = json::write_broker(frame);
    assert_eq!(read_compact_broker(&compact_broker(frame)).expect("a frame"), std::slice::from_ref(frame));
}
