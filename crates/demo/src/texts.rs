//! The longer texts of the demo server.

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
