//! The front's end of a link.

use super::LinkOptions;
use super::frames::{LinkEnd, read_frames, write_frames};
use super::patient::Patient;
use super::queue::FrameQueue;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolbus_cluster::{RemotePartition, Transport};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Peer};

/// A partition at another broker. The link is closed when the mailboxes are dropped.
pub struct Link {
    /// The mailboxes of the partition.
    pub mailboxes: Arc<dyn Mailboxes>,
    /// Cancelled when the link has ended. The mailboxes have to be replaced: they drop all commands.
    pub closed: CancellationToken,
}

/// Starts a link on an authenticated connection.
pub fn start(stream: impl AsyncRead + AsyncWrite + Send + 'static, options: &LinkOptions) -> Link {
    let queue = Arc::new(FrameQueue::new(options));
    let remote = Arc::new(RemotePartition::new(Arc::clone(&queue) as Arc<dyn Transport>));
    let closed = CancellationToken::new();
    let mailboxes = Arc::new(LinkedPartition { remote: Arc::clone(&remote), _closes: closed.clone().drop_guard() });
    let (options, ending) = (options.clone(), closed.clone());
    tokio::spawn(async move {
        let _closes = ending.clone().drop_guard();
        let outcome = tokio::select! {
            outcome = run(stream, &remote, &queue, &options) => outcome,
            () = ending.cancelled() => Err(LinkEnd::Closed),
        };
        queue.close();
        if let Err(end) = outcome {
            tracing::debug!(%end, "a link to another broker has ended");
        }
    });
    Link { mailboxes, closed }
}

/// The front reads regardless of how much it has to write. Otherwise there would be a deadlock, because the owner stops reading
/// while its answers wait. The outboxes of the clients bound the memory.
async fn run(
    stream: impl AsyncRead + AsyncWrite,
    remote: &RemotePartition,
    queue: &FrameQueue,
    options: &LinkOptions,
) -> Result<(), LinkEnd> {
    let (reader, writer) = tokio::io::split(stream);
    let reader = Patient::new(reader, options.silence);
    tokio::select! {
        biased;
        outcome = read_frames(reader, options.max_frame_bytes, None, |frame| remote.receive(frame)) => outcome,
        // No deadline: an owner that reads slowly is alive as long as it sends keepalives.
        outcome = write_frames(writer, queue, options.keepalive) => outcome,
        end = queue.ended() => Err(end),
    }
}

/// The mailboxes of a link, which end it when they are dropped.
struct LinkedPartition {
    remote: Arc<RemotePartition>,
    _closes: DropGuard,
}

impl Mailboxes for LinkedPartition {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        self.remote.attach(peer, outbox)
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        self.remote.submit(conn, commands);
    }

    fn detach(&self, conn: ConnId) {
        self.remote.detach(conn);
    }

    fn congested(&self) -> bool {
        self.remote.congested()
    }
}
