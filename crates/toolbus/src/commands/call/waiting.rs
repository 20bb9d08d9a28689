//! Connects for a call. While the broker is away, the call waits for it, as it does later.

use super::CallArgs;
use crate::failure::Failure;
use crate::output::print_error;
use crate::reach::{LocalAgent, transient_agent};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::Backoff;
use toolbus_client::{BrokerClient, BrokerError};

/// Between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// Ctrl-C ends the process meanwhile: nothing was sent.
pub async fn connect(args: &CallArgs, until: Instant) -> Result<BrokerClient, Failure> {
    let mut backoff = BACKOFF;
    let mut is_noted = false;
    loop {
        let connecting = args.reach.connect(LocalAgent::Worker, transient_agent(args.role.clone()), true);
        let failure = match connecting.await {
            Err(Failure::Client(error @ (BrokerError::Transport(_) | BrokerError::Busy { .. }))) => error,
            outcome => return outcome,
        };
        if args.fail_fast || args.detach {
            return Err(failure.into());
        }
        let wait = backoff.next_delay();
        if Instant::now() + wait >= until {
            let (tool, limit) = (args.tool.clone(), args.deadline);
            return Err(Failure::NoConnection { tool, limit, reason: failure.to_string() });
        }
        if !std::mem::replace(&mut is_noted, true) {
            print_error(format_args!(
                "{failure}\nwaiting for the broker until the deadline of {:?}, Ctrl-C cancels; --fail-fast does not wait",
                args.deadline
            ));
        }
        tokio::time::sleep(wait).await;
    }
}
