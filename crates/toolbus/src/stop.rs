//! Stop signals: SIGTERM, SIGINT and SIGHUP, one by one or as a cancellation token. Services that reload their
//! configuration on SIGHUP stop on it only if their terminal was closed.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Receives the stop signals. Once it listens, they no longer end the process by themselves.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    on_hang_up: HangUp,
}

impl StopSignals {
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Runtime);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            on_hang_up: HangUp::Stops,
        })
    }

    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => if self.on_hang_up.stops_now() { return },
            }
        }
    }
}

/// The meaning of SIGHUP.
enum HangUp {
    Stops,
    /// Reloads the configuration, unless the service was started from a terminal that is now closed.
    Reloads {
        from_terminal: bool,
    },
}

impl HangUp {
    fn stops_now(&self) -> bool {
        match self {
            Self::Stops => true,
            Self::Reloads { from_terminal } => *from_terminal && !has_terminal(),
        }
    }
}

fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// A token that the first stop signal cancels. The second one ends the process immediately.
pub fn stop_signal() -> Result<CancellationToken, Failure> {
    Ok(cancel_on(StopSignals::listen()?))
}

/// The same for services that reload their configuration on SIGHUP.
pub fn service_stop_signal() -> Result<CancellationToken, Failure> {
    let on_hang_up = HangUp::Reloads { from_terminal: has_terminal() };
    Ok(cancel_on(StopSignals { on_hang_up, ..StopSignals::listen()? }))
}

fn cancel_on(mut signals: StopSignals) -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        token.cancel();
        signals.next().await;
        // The guards notice the exit and end their child processes.
        std::process::exit(130);
    });
    stop
}
