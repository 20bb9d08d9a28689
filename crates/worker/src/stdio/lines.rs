//! Lines of bounded length from a stream. A line that is too long is not buffered, only scanned for its id; reading goes
//! on after it.

use tokio::io::{AsyncRead, AsyncReadExt};
use toolbus_mcp::{IdScan, ScannedId};

pub enum Line {
    Text(String),
    TooLong(ScannedId),
    NotUtf8,
}

pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The length of the prefix of `buffer` that is known to contain no line break.
    searched: usize,
    limit: usize,
    /// The scan of a line that is too long.
    overlong: Option<IdScan>,
    ended: bool,
}

/// Capacity that the buffer is shrunk to after a long line.
const RETAINED_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, buffer: Vec::new(), searched: 0, limit, overlong: None, ended: false }
    }

    /// The next line that is not blank; `None` at the end of the stream. Cancellation-safe.
    pub async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            self.buffer.reserve(READ_BYTES);
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                self.ended = true;
                // The last line may have no line break.
                self.buffer.push(b'\n');
            }
        }
    }

    fn take_line(&mut self) -> Option<Line> {
        loop {
            let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched > self.limit || self.overlong.is_some() {
                    self.overlong.get_or_insert_default().feed(&self.buffer);
                    self.discard(self.searched);
                }
                return None;
            };
            let end = self.searched + at;
            let line = &self.buffer[..end];
            let overlong = self.overlong.take().or_else(|| (end > self.limit).then(IdScan::default));
            let line = match (overlong, std::str::from_utf8(line)) {
                (Some(mut scan), _) => {
                    scan.feed(line);
                    Line::TooLong(scan.finish())
                }
                (None, Ok(text)) => Line::Text(text.trim().to_owned()),
                (None, Err(_)) => Line::NotUtf8,
            };
            self.discard(end + 1);
            match line {
                Line::Text(text) if text.is_empty() => {}
                line => return Some(line),
            }
        }
    }

    fn discard(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        self.searched = 0;
        if self.buffer.len() < RETAINED_BYTES && self.buffer.capacity() > RETAINED_BYTES {
            self.buffer.shrink_to(RETAINED_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blank_long_and_non_utf8_lines_are_recognised() {
        let long = format!(r#"{{"params":"{}","id":7}}"#, "x".repeat(40_000));
        let input = [b"one\n\n  \n", long.as_bytes(), b"\ntwo\n\xff\xfe\nlast"].concat();
        let mut lines = Lines::new(&input[..], 20_000);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.expect("bytes in memory") {
            seen.push(match line {
                Line::Text(text) => text,
                Line::TooLong(found) => format!("(too long, id {:?})", found.id.map(|id| id.get().to_owned())),
                Line::NotUtf8 => "(not utf-8)".into(),
            });
        }
        assert_eq!(seen, ["one", r#"(too long, id Some("7"))"#, "two", "(not utf-8)", "last"]);
    }
}
