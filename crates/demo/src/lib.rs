//! The built-in demo MCP server, over stdio. `toolbus up` hosts it if no other server is configured. It has a few small
//! tools that show what the bus carries (structured results, progress, an image, cancellation), a resource and a
//! prompt. It supports both eras of MCP; the client chooses.

mod chart;
mod server;
mod texts;

use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;

/// The name under which `toolbus up` hosts it.
pub const NAME: &str = "demo";

/// Why the demo server stopped.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The handshake with the client failed.
    #[error("the MCP handshake failed: {0}")]
    Begin(String),
    /// The server's task panicked or was aborted.
    #[error("the demo server failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Serves on stdin and stdout until stdin is closed.
pub async fn serve_stdio() -> Result<(), DemoError> {
    let service = server::Demo::new().serve(stdio_pipes()).await;
    let service = service.map_err(|error| DemoError::Begin(error.to_string()))?;
    service.waiting().await?;
    Ok(())
}
