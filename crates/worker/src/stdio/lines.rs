//! Lines of bounded length from a stream. A line that is too long is skipped and reported; reading goes on after it.

use tokio::io::{AsyncRead, AsyncReadExt};

pub enum Line {
    Text(String),
    TooLong,
    NotUtf8,
}

pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The length of the prefix of `buffer` that is known to contain no line break.
    searched: usize,
    limit: usize,
    skipping: bool,
    ended: bool,
}

/// Capacity that the buffer is shrunk to after a long line.
const RETAINED_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, buffer: Vec::new(), searched: 0, limit, skipping: false, ended: false }
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
                if self.searched > self.limit {
                    self.skipping = true;
                    self.discard(self.searched);
                }
                return None;
            };
            let end = self.searched + at;
            let line = match (
                std::mem::take(&mut self.skipping) || end > self.limit,
                std::str::from_utf8(&self.buffer[..end]),
            ) {
                (true, _) => Line::TooLong,
                (false, Ok(text)) => Line::Text(text.trim().to_owned()),
                (false, Err(_)) => Line::NotUtf8,
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
        let input = [b"one\n\n  \n", "x".repeat(40_000).as_bytes(), b"\ntwo\n\xff\xfe\nlast"].concat();
        let mut lines = Lines::new(&input[..], 20_000);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.expect("bytes in memory") {
            seen.push(match line {
                Line::Text(text) => text,
                Line::TooLong => "(too long)".into(),
                Line::NotUtf8 => "(not utf-8)".into(),
            });
        }
        assert_eq!(seen, ["one", "(too long)", "two", "(not utf-8)", "last"]);
    }
}
