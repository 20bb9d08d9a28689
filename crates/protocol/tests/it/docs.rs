//! Checks that the reference docs match the wire types.

use crate::wire::{read_compact_broker, read_compact_client};
use std::path::Path;
use toolbus_protocol::{BrokerFrame, ClientFrame, ErrorCode, MAX_BODY_DEPTH, MAX_NAME_BYTES, PROTOCOL_VERSION, json};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn errors_md_lists_every_code_with_name_meaning_and_hint() {
    let page = page("errors.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `TB")).collect();
    let expected: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| format!("| `{}` | `{}` | {} | {} |", code.code(), code.name(), code.meaning(), code.hint()))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn protocol_md_lists_every_frame_in_both_directions() {
    let page = page("protocol.md");
    let check = |heading: &str, kinds: &[&str]| {
        let section = section(&page, heading);
        let rows: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|row| row.split('`').next().expect("a split has a first part"))
            .collect();
        assert_eq!(rows, kinds, "the table in section {heading:?}");
    };
    check("Client to broker", ClientFrame::KINDS);
    check("Broker to client", BrokerFrame::KINDS);
}

#[test]
fn protocol_md_states_the_actual_limits() {
    let page = page("protocol.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for fact in [
        format!("1 to {MAX_NAME_BYTES} bytes"),
        format!("{MAX_BODY_DEPTH} levels"),
        format!("version {PROTOCOL_VERSION}"),
    ] {
        assert!(page.contains(&fact), "protocol.md does not contain {fact:?}");
    }
    assert!(ErrorCode::BadName.hint().contains(&format!("1 to {MAX_NAME_BYTES} bytes")));
    assert!(ErrorCode::TooDeep.hint().contains(&format!("{MAX_BODY_DEPTH} levels")));
}

#[test]
fn every_json_example_in_protocol_md_is_a_known_frame() {
    let page = page("protocol.md");
    let shown: Vec<&str> = blocks(&page, "json").flat_map(str::lines).filter(|line| !line.is_empty()).collect();
    assert!(!shown.is_empty());
    for line in shown {
        let (from, frame) = line.split_at(2);
        let known = match from {
            "> " => json::read_client(frame.as_bytes()).map(|frame| !matches!(frame, ClientFrame::Unknown { .. })),
            "< " => json::read_broker(frame.as_bytes()).map(|frame| !matches!(frame, BrokerFrame::Unknown { .. })),
            _ => panic!("{line}: an example must start with `> ` or `< `"),
        };
        assert!(known.unwrap_or_else(|error| panic!("{line}: {error}")), "{line}");
    }
}

#[test]
fn every_hex_example_in_protocol_md_is_a_known_frame() {
    let page = page("protocol.md");
    let shown: Vec<Vec<u8>> = blocks(&page, "hex").map(hex).collect();
    assert!(!shown.is_empty());
    for bytes in shown {
        let known = read_compact_client(&bytes)
            .is_ok_and(|frames| frames.iter().all(|frame| !matches!(frame, ClientFrame::Unknown { .. })))
            || read_compact_broker(&bytes)
                .is_ok_and(|frames| frames.iter().all(|frame| !matches!(frame, BrokerFrame::Unknown { .. })));
        assert!(known, "{bytes:02x?}");
    }
}

/// Parses hexadecimal bytes with comments after `#`.
pub fn hex(text: &str) -> Vec<u8> {
    let digits = text.lines().flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("two hexadecimal digits")).collect()
}

fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading:?}"));
    rest.split("\n## ").next().expect("a split has a first part")
}

fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let fence = format!("```{language}\n");
    let starts: Vec<usize> = page.match_indices(&fence).map(|(at, _)| at + fence.len()).collect();
    starts.into_iter().map(move |start| page[start..].split("```").next().expect("a split has a first part"))
}
