//! Writes messages to a server's stdin, all queued ones in one write. Ends, and thereby closes stdin, when all senders
//! are dropped or the connection is stopped.

use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const MAX_LINES_AT_ONCE: usize = 64;
/// A buffer that grew beyond this is freed after the write.
const KEPT_BUFFER_BYTES: usize = 64 << 10;
/// How long messages sent before the stop may still be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);

pub(super) async fn write(stdin: ChildStdin, queued: mpsc::Receiver<String>, stop: CancellationToken) {
    let flush_deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(FLUSH_TIMEOUT).await;
    };
    tokio::select! {
        () = write_all(stdin, queued, &stop) => {}
        () = flush_deadline => {}
    }
}

async fn write_all(mut stdin: ChildStdin, mut queued: mpsc::Receiver<String>, stop: &CancellationToken) {
    let mut lines = Vec::with_capacity(MAX_LINES_AT_ONCE);
    let mut buffer = Vec::new();
    loop {
        tokio::select! {
            biased;
            count = queued.recv_many(&mut lines, MAX_LINES_AT_ONCE) => if count == 0 { return },
            // A closed receiver returns the remaining messages, then none.
            () = stop.cancelled(), if !queued.is_closed() => queued.close(),
        }
        for line in lines.drain(..) {
            buffer.extend_from_slice(line.as_bytes());
            buffer.push(b'\n');
        }
        if stdin.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
        if buffer.capacity() > KEPT_BUFFER_BYTES {
            buffer = Vec::new();
        }
    }
}
