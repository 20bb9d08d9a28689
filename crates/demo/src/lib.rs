//! The built-in demo MCP server, over stdio. `toolbus up` hosts it if no other server is configured. It has a few small
//! tools that show what the bus carries (structured results, progress, an image, cancellation), a resource and a
//! prompt. It supports both eras of MCP; the client chooses.

mod chart;
mod server;
mod texts;
mod tools;

use std::io::BufRead;
use tokio::sync::mpsc;

/// The name under which `toolbus up` hosts it.
pub const NAME: &str = "demo";

/// Lines that wait for the server. The client waits if there are more.
const MAX_LINES: usize = 64;

/// Why the demo server stopped.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Reading stdin or writing stdout failed.
    #[error("the demo server failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves on stdin and stdout until stdin is closed.
pub async fn serve_stdio() -> Result<(), DemoError> {
    let (sender, mut lines) = mpsc::channel(MAX_LINES);
    // A thread of its own: the runtime would wait for a blocked read before it ends.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    let server = server::Server::default();
    while let Some(line) = lines.recv().await {
        server.receive(line?)?;
    }
    Ok(())
}
