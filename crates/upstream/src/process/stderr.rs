//! The last lines that a server wrote to stderr. It is always read, so that a server never waits to be heard.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt};

const MAX_LINES: usize = 50;
const MAX_LINE_BYTES: usize = 500;
const READ_BYTES: usize = 8 << 10;

#[derive(Clone, Default)]
pub(crate) struct StderrTail(Arc<Mutex<Tail>>);

#[derive(Default)]
struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// The last of `lines` has not seen its line break.
    open: bool,
}

impl StderrTail {
    pub async fn read(self, mut stderr: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
            self.add(&buffer[..count]);
            // A flood must not keep the thread from everything else.
            tokio::task::yield_now().await;
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end().to_owned()).collect()
    }

    fn add(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
            let room = MAX_LINE_BYTES.saturating_sub(line.len());
            line.extend_from_slice(&text[..text.len().min(room)]);
        }
        self.open = !complete;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut() {
        let tail = StderrTail::default();
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
