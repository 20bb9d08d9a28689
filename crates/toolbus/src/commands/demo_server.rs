//! `toolbus demo-server`: the built-in MCP server on stdin and stdout. Hidden, because `toolbus up` starts it.

use crate::failure::Failure;

pub async fn run() -> Result<(), Failure> {
    Ok(toolbus_demo::serve_stdio().await?)
}
