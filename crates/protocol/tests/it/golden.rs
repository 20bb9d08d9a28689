//! Golden files define the wire format: a code change that makes one of these tests fail changes the protocol.

use crate::samples::{self, ClientSample};
use crate::wire::{compact_broker, compact_client, json_broker, json_client, read_compact_broker, read_compact_client};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toolbus_protocol::{BrokerFrame, ClientFrame, json};

#[test]
fn client_golden_files_decode_to_the_samples() {
    for ClientSample { name, frame, .. } in samples::client() {
        assert_eq!(json_client(&golden("client", name)), frame, "{name}");
    }
}

#[test]
fn broker_golden_files_decode_to_the_samples() {
    for (name, frame) in samples::broker() {
        assert_eq!(json_broker(&golden("broker", name)), frame, "{name}");
    }
}

#[test]
fn client_samples_encode_to_the_golden_files() {
    for ClientSample { name, me, frame } in samples::client() {
        check_written(name, &golden("client", name), &json::write_client(&frame, &me));
    }
}

#[test]
fn broker_samples_encode_to_the_golden_files() {
    for (name, frame) in samples::broker() {
        let written = json::write_broker(&frame).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_written(name, &golden("broker", name), &written);
    }
}

#[test]
fn every_sample_round_trips_through_the_compact_framing() {
    for ClientSample { name, me, frame } in samples::client() {
        let bytes = compact_client(&frame, &me);
        assert_eq!(read_compact_client(&bytes).expect(name), [frame], "{name}");
    }
    for (name, frame) in samples::broker() {
        let bytes = compact_broker(&frame);
        assert_eq!(read_compact_broker(&bytes).expect(name), [frame], "{name}");
    }
}

#[test]
fn compact_client_frames_match_the_golden_files() {
    let samples = samples::client();
    for (name, bytes) in golden_bytes("client") {
        let sample = samples.iter().find(|sample| sample.name == name).expect("a sample of that name");
        assert_eq!(read_compact_client(&bytes).expect(&name), std::slice::from_ref(&sample.frame), "{name}");
        check_bytes(&name, &bytes, &compact_client(&sample.frame, &sample.me));
    }
}

#[test]
fn compact_broker_frames_match_the_golden_files() {
    let samples = samples::broker();
    for (name, bytes) in golden_bytes("broker") {
        let (_, frame) = samples.iter().find(|(sample, _)| *sample == name).expect("a sample of that name");
        assert_eq!(read_compact_broker(&bytes).expect(&name), std::slice::from_ref(frame), "{name}");
        check_bytes(&name, &bytes, &compact_broker(frame));
    }
}

#[test]
fn every_golden_file_has_a_sample_and_every_kind_a_golden_file() {
    let client = samples::client();
    assert_eq!(files("client"), client.iter().map(|sample| sample.name.to_owned()).collect());
    assert_eq!(as_set(ClientFrame::KINDS), client.iter().map(|sample| sample.frame.kind().to_owned()).collect());
    let broker = samples::broker();
    assert_eq!(files("broker"), broker.iter().map(|(name, _)| (*name).to_owned()).collect());
    assert_eq!(as_set(BrokerFrame::KINDS), broker.iter().map(|(_, frame)| frame.kind().to_owned()).collect());
}

#[test]
fn kind_returns_the_kind_on_the_wire() {
    for ClientSample { name, frame, .. } in samples::client() {
        assert_eq!(value(&golden("client", name))["kind"], frame.kind(), "{name}");
    }
    for (name, frame) in samples::broker() {
        assert_eq!(value(&golden("broker", name))["kind"], frame.kind(), "{name}");
    }
}

/// Compares JSON independent of the order of fields, and bodies byte for byte.
fn check_written(name: &str, golden: &str, written: &str) {
    assert_eq!(value(golden), value(written), "{name}");
    assert_eq!(raw_body(golden), raw_body(written), "{name}");
}

/// Compares bytes, except for JSON inside the compact framing, where the order of fields is free.
fn check_bytes(name: &str, golden: &[u8], written: &[u8]) {
    if golden[0] == b'{' {
        assert_eq!(written[0], b'{', "{name}");
    } else {
        assert_eq!(golden, written, "{name}");
    }
}

fn raw_body(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Carrier<'a> {
        #[serde(borrow)]
        body: Option<&'a RawValue>,
        #[serde(borrow)]
        message: Option<Message<'a>>,
    }
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        body: &'a RawValue,
    }
    let carrier: Carrier<'_> = serde_json::from_str(text).expect("golden files are JSON");
    carrier.message.map(|message| message.body).or(carrier.body).map(|body| body.get().to_owned())
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect("golden files and frames are JSON")
}

fn as_set(kinds: &[&str]) -> BTreeSet<String> {
    kinds.iter().map(|kind| (*kind).to_owned()).collect()
}

fn folder(direction: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(direction)
}

fn golden(direction: &str, name: &str) -> String {
    let path = folder(direction).join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(direction: &str) -> BTreeSet<String> {
    let folder = folder(direction);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| entry.expect("a readable folder").path())
        .map(|path| path.file_stem().expect("a named file").to_string_lossy().into_owned())
        .collect()
}

/// Reads hexadecimal golden files.
fn golden_bytes(direction: &str) -> Vec<(String, Vec<u8>)> {
    let direction = format!("compact/{direction}");
    let read = |name: String| {
        let path = folder(&direction).join(format!("{name}.hex"));
        let text = std::fs::read_to_string(path).expect("a readable file");
        (name, crate::docs::hex(&text))
    };
    files(&direction).into_iter().map(read).collect()
}
