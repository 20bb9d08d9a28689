//! Entry points for the fuzz targets.

use crate::http::sse::SseParser;
use toolbus_mcp::IdScan;

pub use crate::http::sse::SseItem;

/// The items of a stream that arrives in these parts, and the id to resume it from.
pub fn sse_items<'a>(parts: impl Iterator<Item = &'a [u8]>, limit: usize) -> (Vec<SseItem>, Option<String>) {
    let (mut parser, mut found) = (SseParser::new(limit), Vec::new());
    parts.for_each(|part| parser.feed(part, &mut found));
    (found, parser.last_id)
}

/// The result of scanning a message that is not parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The text of its id.
    pub id: Option<String>,
    /// Whether it has a method.
    pub has_method: bool,
    /// Whether all brackets are closed.
    pub balanced: bool,
}

/// Scans a message that arrives in these parts.
pub fn scan<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Scanned {
    let mut scan = IdScan::default();
    parts.for_each(|part| scan.feed(part));
    let found = scan.finish();
    let id = found.id.map(|id| id.get().to_owned());
    Scanned { id, has_method: found.has_method, balanced: found.balanced }
}
