//! Keeps docs/mcp-protocol.md in step with the types.

use std::path::Path;
use toolbus_mcp::{HostEvent, HostManifest, HostReply, HostRequest};

#[test]
fn every_example_in_the_docs_is_unchanged_by_parsing_and_writing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mcp-protocol.md");
    let page = std::fs::read_to_string(path).expect("the page exists");
    let examples: Vec<&str> = page.lines().filter(|line| line.starts_with('{')).collect();
    for example in &examples {
        let again = match example {
            line if line.starts_with("{\"op\"") => HostRequest::parse(*line).expect("valid request").to_json(),
            line if line.starts_with("{\"rpc\"") => HostReply::parse(*line).expect("valid reply").to_json(),
            line if line.starts_with("{\"event\"") => HostEvent::parse(*line).expect("valid event").to_json(),
            line => {
                let manifest: HostManifest = serde_json::from_str(line).expect("valid manifest");
                toolbus_mcp::raw(&manifest).text()
            }
        };
        assert_eq!(again, *example);
    }
    for op in HostRequest::OPS.iter().chain(&toolbus_mcp::AdminRequest::OPS) {
        assert!(examples.iter().any(|line| line.contains(&format!("\"op\":\"{op}\""))), "no example of {op}");
    }
}
