//! The longer texts of the demo server: its resource and its prompt.

use serde_json::{Value, json};

pub const INSTRUCTIONS: &str = "The demo server of toolbus. text_stats, now and chart answer at once; countdown and \
    slow take longer, report progress and can be cancelled.";

pub const ABOUT: &str = "\
# The demo server

`toolbus up` hosts this server when it is given no other. It shows what the bus carries:

| tool | what it shows |
|---|---|
| `text_stats` | a structured result with a schema |
| `now` | a text result, and a tool error (try the zone `Nowhere`) |
| `countdown` | progress |
| `chart` | an image |
| `slow` | a call that takes long and can be cancelled |

To host servers of your own, run `toolbus init` and edit `toolbus.toml`, or give `toolbus up --mcp-config FILE` the
configuration of an MCP client.
";

/// The description of the resource.
pub fn about(uri: &str) -> Value {
    json!({
        "uri": uri,
        "name": "about",
        "title": "About this server",
        "description": "What this is, and how to replace it by servers of your own.",
        "mimeType": "text/markdown",
    })
}

/// The description of the prompt.
pub fn prompt() -> Value {
    let topic = json!({"name": "topic", "description": "A topic that the tour should focus on.", "required": false});
    json!({"name": "tour", "description": "Ask for a short tour of these tools.", "arguments": [topic]})
}

/// The text of the prompt.
pub fn tour(topic: Option<&str>) -> String {
    let topic = topic.map_or(String::new(), |topic| format!(" Focus on {topic}."));
    format!("Show me what the tools of this server can do: try each of them once, and explain.{topic}")
}
