//! Frames on a connection: a length of four bytes, then as many bytes. A frame of no bytes is a keepalive.

use super::queue::FrameQueue;
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::MissedTickBehavior;
use toolbus_cluster::BadFrame;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of frames that are copied into one write. A larger frame is written from where it is.
const BATCH_BYTES: usize = 128 << 10;

/// Why a link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnd {
    /// This broker has closed the link.
    #[error("closed by this broker")]
    Closed,
    /// The connection is lost or silent.
    #[error("the connection is lost: {0}")]
    Lost(io::ErrorKind),
    /// A frame exceeds the limit.
    #[error("a frame has {0} bytes, more than the limit")]
    TooLarge(usize),
    /// The peer takes less than it is sent.
    #[error("too many bytes wait to be sent")]
    Overfull,
    /// A frame can't be decoded.
    #[error("a frame can't be decoded")]
    BadFrame,
}

impl From<io::Error> for LinkEnd {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind())
    }
}

impl From<BadFrame> for LinkEnd {
    fn from(_: BadFrame) -> Self {
        Self::BadFrame
    }
}

/// Reads frames until the link ends, each of them only while `answers` has room.
pub async fn read_frames(
    stream: impl AsyncRead + Unpin,
    largest: usize,
    answers: Option<&FrameQueue>,
    receive: impl Fn(Bytes) -> Result<(), BadFrame>,
) -> Result<(), LinkEnd> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    loop {
        if let Some(answers) = answers {
            answers.room().await;
        }
        let length = stream.read_u32().await? as usize;
        if length > largest {
            return Err(LinkEnd::TooLarge(length));
        }
        if length > 0 {
            // Each frame has memory of its own: the engine may keep parts of one for hours, and they keep all of it.
            let mut frame = BytesMut::zeroed(length);
            stream.read_exact(&mut frame).await?;
            receive(frame.freeze())?;
        }
        // Answers are written before more is read.
        if stream.buffer().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

/// Writes the frames of a queue in batches, and keepalives, until the link ends.
pub async fn write_frames(
    mut stream: impl AsyncWrite + Unpin,
    queue: &FrameQueue,
    keepalive: Duration,
) -> Result<(), LinkEnd> {
    let mut ticks = tokio::time::interval(keepalive);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut frames, mut batch) = (Vec::new(), BytesMut::new());
    loop {
        tokio::select! {
            biased;
            () = queue.next(BATCH_BYTES, &mut frames) => {}
            _ = ticks.tick() => frames.push(Bytes::new()),
        }
        for frame in frames.drain(..) {
            batch.put_u32(frame.len() as u32);
            if frame.len() > BATCH_BYTES {
                stream.write_all(&batch).await?;
                batch.clear();
                stream.write_all(&frame).await?;
            } else {
                batch.put_slice(&frame);
            }
        }
        stream.write_all(&batch).await?;
        batch.clear();
        stream.flush().await?;
    }
}
