//! Writes messages to a server's stdin, all that wait in one go. Ends, and thereby closes stdin, when nobody can send
//! any more or when the connection is to stop.

use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const MAX_LINES_AT_ONCE: usize = 64;
/// A buffer that grew past this for one message is not kept.
const KEPT_BUFFER_BYTES: usize = 64 << 10;
/// What was sent before the stop is still written, if the server reads it.
const LAST_WRITES: Duration = Duration::from_millis(300);

pub(super) async fn write(stdin: ChildStdin, waiting: mpsc::Receiver<String>, stop: CancellationToken) {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_WRITES).await;
    };
    tokio::select! {
        () = write_all(stdin, waiting, &stop) => {}
        () = too_late => {}
    }
}

async fn write_all(mut stdin: ChildStdin, mut waiting: mpsc::Receiver<String>, stop: &CancellationToken) {
    let mut lines = Vec::with_capacity(MAX_LINES_AT_ONCE);
    let mut buffer = Vec::new();
    loop {
        tokio::select! {
            biased;
            count = waiting.recv_many(&mut lines, MAX_LINES_AT_ONCE) => if count == 0 { return },
            // A closed receiver gives out what is still in it, and then nothing.
            () = stop.cancelled(), if !waiting.is_closed() => waiting.close(),
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
