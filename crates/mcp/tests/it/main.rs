//! What must hold of MCP as raw JSON.

mod bodies;
mod edits;
mod messages;
