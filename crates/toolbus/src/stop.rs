//! The wish to stop: SIGTERM, Ctrl-C or the end of the terminal, one by one or as a token that services watch.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// From now on these signals don't end the process; whoever listens decides what they do.
pub struct StopWishes {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl StopWishes {
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Runtime);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// Cancelled by the first wish. A second one ends the process at once.
pub fn stop_signal() -> Result<CancellationToken, Failure> {
    let mut wishes = StopWishes::listen()?;
    let stop = CancellationToken::new();
    let wish = stop.clone();
    tokio::spawn(async move {
        wishes.next().await;
        wish.cancel();
        wishes.next().await;
        // Children are ended by their guards, which see that we are gone.
        std::process::exit(130);
    });
    Ok(stop)
}
