//! A host on one connection: receives requests, passes them to `Calls`, and sends the replies.

use crate::calls::{Action, Calls, PendingReply};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use toolbus_client::{BrokerClient, BrokerError, BrokerResult, ErrorCode};

/// How long to wait for the broker to close the connection of a displaced host.
const DISPLACED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until the connection is lost.
pub async fn serve(client: BrokerClient, calls: &mut Calls) -> BrokerResult<()> {
    client.subscribe().await?;
    let client = Arc::new(client);
    let mut outgoing = OutgoingReplies { client: Arc::clone(&client), tasks: JoinSet::new() };
    // Replies of calls that ended while there was no connection.
    calls.pending_replies().into_iter().for_each(|answer| outgoing.start(answer));
    loop {
        let action = tokio::select! {
            request = client.next_message(), if calls.has_room() => match request {
                Some(request) => {
                    let deadline = client.deadline_of(&request.id);
                    calls.admit(request, deadline)
                }
                None => return ended(&client).await,
            },
            cancelled = client.next_cancel() => match cancelled {
                Some(id) => calls.cancel(&id),
                None => return ended(&client).await,
            },
            action = calls.finished() => action,
            Some((answer, outcome)) = outgoing.next() => reply_sent(calls, answer, outcome),
        };
        match action {
            Action::None => {}
            Action::Acknowledge(id) => client.ack(id).await?,
            Action::Send(answer) => outgoing.start(answer),
        }
    }
}

/// A lost connection is not an error, but displacement by another host is. If credentials are per agent, the broker
/// closes the connection of a displaced host, and its end reason is then an authentication error.
async fn ended(client: &BrokerClient) -> BrokerResult<()> {
    if client.end_reason().is_some_and(|end| end.code() == Some(ErrorCode::Displaced)) {
        tokio::time::timeout(DISPLACED_CLOSE_TIMEOUT, client.closed()).await.ok();
    }
    match client.end_reason() {
        Some(end @ BrokerError::Auth { .. }) if client.is_closed() => return Err(end),
        Some(_) if client.is_closed() => return Ok(()),
        _ => {}
    }
    let reason = format!("another host took over the mailbox '{}'", client.me().session_id);
    Err(BrokerError::Rejected { code: Some(ErrorCode::Displaced), reason, id: None })
}

fn reply_sent(calls: &mut Calls, answer: Arc<PendingReply>, outcome: BrokerResult<()>) -> Action {
    match outcome {
        Ok(()) => {
            calls.settle(&answer.request.id);
            Action::None
        }
        // The request has expired or was withdrawn. If the broker only lost it, the client resends the reply later.
        Err(BrokerError::Rejected { code: Some(ErrorCode::NotYourRequest), .. }) => {
            calls.settle(&answer.request.id);
            Action::None
        }
        // Whether the reply arrived is unknown. It keeps its id, so the broker deduplicates it.
        Err(BrokerError::Timeout(_)) => Action::Send(answer),
        Err(error @ (BrokerError::Rejected { .. } | BrokerError::Body(_) | BrokerError::Address(_))) => {
            calls.reply_rejected(&answer, &error)
        }
        // The connection is lost; the reply is sent on the next one.
        Err(_) => Action::None,
    }
}

/// Replies that are being sent. Bounded by the number of open calls.
struct OutgoingReplies {
    client: Arc<BrokerClient>,
    tasks: JoinSet<(Arc<PendingReply>, BrokerResult<()>)>,
}

impl OutgoingReplies {
    fn start(&mut self, answer: Arc<PendingReply>) {
        let client = Arc::clone(&self.client);
        self.tasks.spawn(async move {
            let outcome = client.reply_message(&answer.request, &answer.reply).await;
            (answer, outcome)
        });
    }

    async fn next(&mut self) -> Option<(Arc<PendingReply>, BrokerResult<()>)> {
        self.tasks.join_next().await.map(|joined| joined.expect("the sending task neither panics nor is aborted"))
    }
}
