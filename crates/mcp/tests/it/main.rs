//! Tests of MCP as raw JSON.

mod bodies;
mod docs;
mod edits;
mod messages;
mod parsed_once;
