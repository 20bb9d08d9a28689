//! Keeps a connection up: connects, runs it, and after a loss waits a little longer each time before the next try.

use crate::error::BrokerError;
use crate::link::{self, Destination, Link};
use crate::options::ClientOptions;
use crate::shared::Shared;
use crate::turn::Turns;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A connection that held this long counts as good: the next loss starts with the shortest wait again.
const GOOD_RUN: Duration = Duration::from_secs(1);

/// `first` is a connection that the session knows of already.
pub async fn run(first: Link, destination: Destination, options: ClientOptions, shared: Arc<Shared>) {
    let mut link = Some(first);
    let mut backoff = options.backoff;
    let mut failures = 0;
    loop {
        let next = match link.take() {
            Some(link) => Ok(link),
            None => link::connect(&destination, &options).await.inspect(|link| shared.lock().connected(link.terms)),
        };
        match next {
            Ok(link) => {
                failures = 0;
                shared.arrivals.notify_waiters();
                let started = Instant::now();
                if run_connection(link, &options, &shared).await {
                    return;
                }
                if started.elapsed() >= GOOD_RUN {
                    backoff = options.backoff;
                }
            }
            Err(error) if error.is_final() => return end(&shared, error),
            Err(error) => {
                tracing::debug!(%error, "no connection yet");
                failures += 1;
                if options.reconnect_attempts.is_some_and(|most| failures >= most.get()) {
                    return end(&shared, error);
                }
            }
        }
        let (closed, displaced) = {
            let session = shared.lock();
            (session.closed.is_some(), session.displaced.clone())
        };
        match displaced {
            _ if closed => return,
            // To come back would be to fight for the mailbox.
            Some(displaced) => return end(&shared, displaced),
            None => {}
        }
        if !options.reconnect {
            return end(&shared, BrokerError::Transport("the connection was lost".into()));
        }
        wait(backoff, &shared).await;
        if shared.lock().closed.is_some() {
            return;
        }
        backoff = (backoff * 2).min(options.longest_backoff);
    }
}

/// True if the client was closed by its owner.
async fn run_connection(link: Link, options: &ClientOptions, shared: &Shared) -> bool {
    let mut turns = Turns::new(link, shared, options);
    let reason = (&mut turns).await;
    let closed = shared.lock().closed.is_some();
    if closed {
        turns.goodbye().await;
    } else {
        tracing::info!(%reason, "the connection to the broker was lost");
    }
    shared.lock().disconnected();
    shared.arrivals.notify_waiters();
    closed
}

/// Sleeps, but not past the end of the client.
async fn wait(backoff: Duration, shared: &Shared) {
    let closed = std::future::poll_fn(|cx| {
        shared.begin_turn(cx.waker());
        shared.end_turn();
        match shared.lock().closed {
            Some(_) => std::task::Poll::Ready(()),
            None => std::task::Poll::Pending,
        }
    });
    tokio::time::timeout(backoff, closed).await.ok();
}

fn end(shared: &Shared, error: BrokerError) {
    tracing::error!(%error, "giving up on the broker");
    shared.lock().close(error);
    shared.arrivals.notify_waiters();
}
