//! The built-in demo MCP server, over stdio: what `toolbus up` hosts when it is given nothing else. A few small tools
//! that show what goes over the bus (structured results, progress, an image, cancellation), a resource and a prompt. It
//! speaks both eras of MCP, whichever the client begins with.

mod chart;
mod server;
mod texts;

use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;

/// The name under which `toolbus up` hosts it.
pub const NAME: &str = "demo";

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("the client did not begin as MCP wants it: {0}")]
    Begin(String),
    #[error("the demo server broke: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Serves on stdin and stdout until stdin ends.
pub async fn serve_stdio() -> Result<(), DemoError> {
    let service = server::Demo::new().serve(stdio_pipes()).await;
    let service = service.map_err(|error| DemoError::Begin(error.to_string()))?;
    service.waiting().await?;
    Ok(())
}
