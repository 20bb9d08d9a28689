//! The page about these bodies must change with them.

use std::path::Path;
use toolbus_mcp::{HostEvent, HostManifest, HostReply, HostRequest};

#[test]
fn every_example_of_the_page_is_read_and_written_the_same() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mcp-protocol.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let examples: Vec<&str> = page.lines().filter(|line| line.starts_with('{')).collect();
    for example in &examples {
        let again = match example {
            line if line.starts_with("{\"op\"") => HostRequest::parse(line).expect("a request").to_json(),
            line if line.starts_with("{\"rpc\"") => HostReply::parse(line).expect("a reply").to_json(),
            line if line.starts_with("{\"event\"") => HostEvent::parse(line).expect("an event").to_json(),
            line => {
                let manifest: HostManifest = serde_json::from_str(line).expect("a manifest");
                serde_json::to_string(&manifest).expect("it can be written")
            }
        };
        assert_eq!(again, *example);
    }
    for op in HostRequest::OPS.iter().chain(&toolbus_mcp::AdminRequest::OPS) {
        assert!(examples.iter().any(|line| line.contains(&format!("\"op\":\"{op}\""))), "no example of {op}");
    }
}
