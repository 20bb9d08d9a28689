//! Splits a byte stream into lines. A line over the limit is not buffered, only scanned for its id.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use toolbus_mcp::{IdScan, ScannedId};

const READ_BYTES: usize = 64 << 10;

pub(super) struct Lines<R> {
    source: R,
    buffer: BytesMut,
    /// How far the buffer has been searched for a line break.
    seen: usize,
    limit: usize,
    overlong: Option<IdScan>,
}

pub(super) enum Line {
    Text(Bytes),
    TooLong(ScannedId),
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(source: R, limit: usize) -> Self {
        Self { source, buffer: BytesMut::new(), seen: 0, limit, overlong: None }
    }

    /// Returns `None` at the end of the stream. A last line without a line break is truncated and discarded.
    pub async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.take_line() {
                return Some(line);
            }
            if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
                self.buffer.reserve(READ_BYTES);
            }
            match self.source.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    fn take_line(&mut self) -> Option<Line> {
        let end = memchr::memchr(b'\n', &self.buffer[self.seen..]).map(|at| self.seen + at);
        match (end, &mut self.overlong) {
            (Some(end), Some(scan)) => {
                scan.feed(&self.buffer[..end]);
                self.buffer.advance(end + 1);
                self.seen = 0;
                self.overlong.take().map(|scan| Line::TooLong(scan.finish()))
            }
            (Some(end), None) => {
                // Parts of a line are kept without a copy. Those of a short one would keep the whole buffer in memory.
                let line = self.buffer.split_to(end);
                let line = if end < READ_BYTES { Bytes::copy_from_slice(&line) } else { line.freeze() };
                self.buffer.advance(1);
                self.seen = 0;
                Some(Line::Text(line))
            }
            (None, scan) => {
                if scan.is_none() && self.buffer.len() > self.limit {
                    *scan = Some(IdScan::default());
                }
                match scan {
                    Some(scan) => {
                        scan.feed(&self.buffer);
                        // A new buffer, so that the memory of the long line is freed.
                        self.buffer = BytesMut::new();
                        self.seen = 0;
                    }
                    None => self.seen = self.buffer.len(),
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(input: &'static [u8], limit: usize, expected: &[&str]) {
        let mut lines = Lines::new(input, limit);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(match line {
                Line::Text(text) => String::from_utf8_lossy(&text).into_owned(),
                Line::TooLong(found) => format!("too long: {}", found.bytes),
            });
        }
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn lines_are_split_and_a_truncated_one_is_discarded() {
        check(b"a\n\nbc\r\nd", 100, &["a", "", "bc\r"]).await;
    }

    #[tokio::test]
    async fn a_short_line_does_not_keep_the_buffer_in_memory() {
        let mut lines = Lines::new(&b"short\nnext\n"[..], 100);
        let Some(Line::Text(line)) = lines.next().await else { panic!("a line") };
        assert!(line.is_unique());
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_skipped_and_the_next_one_is_not() {
        static LONG: [u8; 200_000] = [b' '; 200_000];
        let mut input = LONG.to_vec();
        input.extend_from_slice(b"\nnext\n");
        check(input.leak(), 1_000, &["too long: 200000", "next"]).await;
    }
}
