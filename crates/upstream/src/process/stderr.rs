//! The last lines of a server's stderr. It is read continuously, so that the server never blocks on it.

use crate::secrets::Redactor;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt};

const MAX_LINES: usize = 50;
const MAX_LINE_BYTES: usize = 500;
const READ_BYTES: usize = 8 << 10;

/// How much of a line is buffered, so that a secret at the end of the displayed part is seen whole.
const MAX_READ_BYTES: usize = 8 << 10;

#[derive(Clone)]
pub(crate) struct StderrTail {
    tail: Arc<Mutex<Tail>>,
    redactor: Redactor,
}

#[derive(Default)]
struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// The last of `lines` is not terminated yet.
    open: bool,
}

impl StderrTail {
    pub fn new(redactor: Redactor) -> Self {
        Self { tail: Arc::default(), redactor }
    }

    pub async fn read(self, mut stderr: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
            self.add(&buffer[..count]);
            // Yields, so that a flood doesn't starve other tasks.
            tokio::task::yield_now().await;
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.lines.iter().map(|line| self.shown(line)).collect()
    }

    /// Redacts before truncating: truncating first could leave a part of a secret.
    fn shown(&self, line: &[u8]) -> String {
        let mut line = self.redactor.redact_cut(&String::from_utf8_lossy(line));
        let mut end = line.len().min(MAX_LINE_BYTES);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.trim_end().to_owned()
    }

    fn add(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            tail.add_piece(piece);
        }
    }
}

impl Tail {
    fn add_piece(&mut self, piece: &[u8]) {
        if !self.open {
            if self.lines.len() == MAX_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(Vec::new());
        }
        let (text, complete) = match piece.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (piece, false),
        };
        if let Some(line) = self.lines.back_mut() {
            let room = MAX_READ_BYTES.saturating_sub(line.len());
            line.extend_from_slice(&text[..text.len().min(room)]);
        }
        self.open = !complete;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_truncated() {
        let tail = StderrTail::new(Redactor::default());
        for number in 0..200 {
            tail.add(format!("line {number}\n").as_bytes());
        }
        tail.add(&[b'x'; 2_000]);
        tail.add(b"yyy\nend");
        let lines = tail.lines();
        assert_eq!(lines.len(), MAX_LINES);
        assert_eq!(lines[MAX_LINES - 3], "line 199");
        assert_eq!(lines[MAX_LINES - 2], "x".repeat(MAX_LINE_BYTES));
        assert_eq!(lines[MAX_LINES - 1], "end");
    }
}
