//! The owner's end of a link.

use super::LinkOptions;
use super::frames::{LinkEnd, read_frames, write_frames};
use super::local::LocalPartition;
use super::patient::Patient;
use super::queue::FrameQueue;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use toolbus_cluster::{PartitionServer, Transport};

/// How often the end of a congestion is looked for.
const CONGESTION_PAUSE: Duration = Duration::from_millis(20);

/// An accepted link.
pub struct ServedLink<S> {
    stream: S,
    local: LocalPartition,
    options: LinkOptions,
}

impl<S: AsyncRead + AsyncWrite> ServedLink<S> {
    /// A link on an authenticated connection.
    pub fn new(stream: S, local: LocalPartition, options: LinkOptions) -> Self {
        Self { stream, local, options }
    }

    /// Serves the link until it ends. The clients of the front are disconnected then, also if the future is dropped.
    pub async fn run(self) {
        let Self { stream, local, options } = self;
        let queue = Arc::new(FrameQueue::new(&options));
        // Declared after the queue, so it disconnects the clients while frames to them are still taken, and then dropped.
        let server = PartitionServer::new(local.mailboxes, Arc::clone(&queue) as Arc<dyn Transport>);
        let end = tokio::select! {
            biased;
            () = local.ended.cancelled() => LinkEnd::Closed,
            Err(end) = serve(stream, &server, &queue, &options) => end,
        };
        queue.close();
        tracing::debug!(%end, "a link of another broker has ended");
    }
}

/// Carries out the frames of the front, and sends it what the mailboxes answer and push.
///
/// Backpressure: while too many bytes wait to be sent, nothing is read. New commands would add answers, and new
/// acknowledgements would open the windows for more messages, so both end with the reading. The front can't end up waiting for
/// the owner at the same time, because it reads regardless of what it has to write. If it doesn't read, nothing is written for
/// a while, and the link is closed.
async fn serve(
    stream: impl AsyncRead + AsyncWrite,
    server: &PartitionServer,
    queue: &FrameQueue,
    options: &LinkOptions,
) -> Result<(), LinkEnd> {
    let (reader, writer) = tokio::io::split(stream);
    let (reader, writer) = (Patient::new(reader, options.silence), Patient::new(writer, options.silence));
    let congested = Notify::new();
    let receive = |frame| {
        server.receive(frame)?;
        if server.is_congested() {
            congested.notify_one();
        }
        Ok(())
    };
    tokio::select! {
        biased;
        outcome = read_frames(reader, options.max_frame_bytes, Some(queue), receive) => outcome,
        () = report_recovery(server, &congested) => Ok(()),
        outcome = write_frames(writer, queue, options.keepalive) => outcome,
        end = queue.ended() => Err(end),
    }
}

/// Tells the front when the mailboxes are no longer congested. Never returns.
async fn report_recovery(server: &PartitionServer, congested: &Notify) {
    loop {
        congested.notified().await;
        while server.is_congested() {
            tokio::time::sleep(CONGESTION_PAUSE).await;
            server.report_congestion();
        }
    }
}
