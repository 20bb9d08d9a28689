//! The wish to stop: SIGTERM, Ctrl-C or the end of the terminal, one by one or as a token that services watch.
//! Services that read their configuration again on SIGHUP stop by it only if their terminal is gone.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// From now on these signals don't end the process; whoever listens decides what they do.
pub struct StopWishes {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    hang_up_stops: HangUp,
}

impl StopWishes {
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Runtime);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            hang_up_stops: HangUp::Stops,
        })
    }

    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => if self.hang_up_stops.stops_now() { return },
            }
        }
    }
}

/// What SIGHUP means.
enum HangUp {
    Stops,
    /// The configuration is to be read again, unless the terminal from which the service was started is gone.
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

/// Cancelled by the first wish. A second one ends the process at once.
pub fn stop_signal() -> Result<CancellationToken, Failure> {
    Ok(stop_by(StopWishes::listen()?))
}

/// The same for services that read their configuration again on SIGHUP.
pub fn service_stop_signal() -> Result<CancellationToken, Failure> {
    let hang_up_stops = HangUp::Reloads { from_terminal: has_terminal() };
    Ok(stop_by(StopWishes { hang_up_stops, ..StopWishes::listen()? }))
}

fn stop_by(mut wishes: StopWishes) -> CancellationToken {
    let stop = CancellationToken::new();
    let wish = stop.clone();
    tokio::spawn(async move {
        wishes.next().await;
        wish.cancel();
        wishes.next().await;
        // Children are ended by their guards, which see that we are gone.
        std::process::exit(130);
    });
    stop
}
