//! Keeps the client connected: runs a connection, and reconnects with exponential backoff after a loss.

use crate::BrokerError;
use crate::connection::{self, Connection, Destination};
use crate::driver::ConnectionDriver;
use crate::options::ClientOptions;
use crate::shared::Shared;
use std::sync::Arc;
use tokio::time::Instant;
use toolbus_base::Backoff;

/// `first` must already be registered in the session (`Session::connected`).
pub async fn run(first: Connection, destination: Destination, options: ClientOptions, shared: Arc<Shared>) {
    let mut connection = Some(first);
    let mut backoff = Backoff::new(options.backoff, options.longest_backoff);
    let mut failures = 0;
    loop {
        let next = match connection.take() {
            Some(connection) => Ok(connection),
            None => match unless_closed(&shared, connection::connect(&destination, &options)).await {
                Some(next) => next.inspect(|connection| shared.lock().connected(connection.terms)),
                None => return,
            },
        };
        match next {
            Ok(connection) => {
                failures = 0;
                shared.updates.notify_waiters();
                let started = Instant::now();
                if run_connection(connection, &options, &shared).await {
                    return;
                }
                if started.elapsed() >= options.stable_after {
                    backoff.reset();
                }
            }
            Err(error) if error.is_final() => return close_with(&shared, error),
            Err(error) => {
                tracing::debug!(%error, "connection attempt failed");
                failures += 1;
                if options.reconnect_attempts.is_some_and(|most| failures >= most.get()) {
                    return close_with(&shared, error);
                }
            }
        }
        let (closed, displaced) = {
            let session = shared.lock();
            (session.closed.is_some(), session.displaced.clone())
        };
        match displaced {
            _ if closed => return,
            // Reconnecting would displace the other subscriber in turn, endlessly.
            Some(displaced) => return close_with(&shared, displaced),
            None => {}
        }
        if !options.reconnect {
            return close_with(&shared, BrokerError::Transport("the connection was lost".into()));
        }
        if unless_closed(&shared, tokio::time::sleep(backoff.next_delay())).await.is_none() {
            return;
        }
    }
}

/// Runs until the connection ends. Returns `true` if the client is closed.
async fn run_connection(connection: Connection, options: &ClientOptions, shared: &Shared) -> bool {
    let mut driver = ConnectionDriver::new(connection, shared, options);
    let reason = (&mut driver).await;
    let closed = shared.lock().closed.is_some();
    if closed {
        driver.close().await;
    } else {
        tracing::info!(%reason, "the connection to the broker was lost");
    }
    shared.lock().disconnected();
    shared.updates.notify_waiters();
    closed
}

/// Waits for the future. Returns `None` if the client is closed before.
async fn unless_closed<T>(shared: &Shared, future: impl Future<Output = T>) -> Option<T> {
    let closed = std::future::poll_fn(|cx| {
        shared.begin_poll(cx.waker());
        shared.end_poll();
        match shared.lock().closed {
            Some(_) => std::task::Poll::Ready(()),
            None => std::task::Poll::Pending,
        }
    });
    tokio::select! {
        biased;
        () = closed => None,
        output = future => Some(output),
    }
}

fn close_with(shared: &Shared, error: BrokerError) {
    tracing::error!(%error, "the client will not reconnect to the broker");
    shared.lock().close(error);
    shared.updates.notify_waiters();
}
