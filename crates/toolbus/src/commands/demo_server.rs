//! `toolbus demo-server`: the built-in MCP server on stdin and stdout. Hidden: `toolbus up` starts it as a child.

use crate::failure::Failure;

pub async fn run() -> Result<(), Failure> {
    Ok(toolbus_demo::serve_stdio().await?)
}
