//! The wish to stop: SIGTERM or Ctrl-C, as a token that services watch.

use crate::failure::Failure;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancelled by the first SIGTERM, SIGINT or SIGHUP. A second one ends the process at once.
pub fn stop_signal() -> Result<CancellationToken, Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Failure::Runtime)?;
    let stop = CancellationToken::new();
    let wish = stop.clone();
    tokio::spawn(async move {
        for wished_before in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {}
            }
            if wished_before {
                // Children are ended by their guards, which see that we are gone.
                std::process::exit(130);
            }
            wish.cancel();
        }
    });
    Ok(stop)
}
