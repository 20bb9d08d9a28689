//! A host on one connection: takes requests, lets `Calls` decide, sends the answers.

use crate::calls::{Answer, Calls, Step};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use toolbus_client::{BrokerClient, BrokerError, BrokerResult, ErrorCode};

/// How long a broker takes at most to close the connection of a host that it displaced, if it does.
const CLOSES_SOON: Duration = Duration::from_secs(1);

/// Serves until the connection is lost.
pub async fn serve(client: BrokerClient, calls: &mut Calls) -> BrokerResult<()> {
    client.subscribe().await?;
    let client = Arc::new(client);
    let mut sending = Sending { client: Arc::clone(&client), tasks: JoinSet::new() };
    // Answers of calls that ended while there was no connection.
    calls.unsent().into_iter().for_each(|answer| sending.start(answer));
    loop {
        let step = tokio::select! {
            request = client.next_message(), if calls.has_room() => match request {
                Some(request) => {
                    let deadline = client.deadline_of(&request.id);
                    calls.take(request, deadline)
                }
                None => return ended(&client).await,
            },
            cancelled = client.next_cancel() => match cancelled {
                Some(id) => calls.cancel(&id),
                None => return ended(&client).await,
            },
            step = calls.finished() => step,
            Some((answer, outcome)) = sending.next() => sent(calls, answer, outcome),
        };
        match step {
            Step::Nothing => {}
            Step::Ack(id) => client.ack(id).await?,
            Step::Send(answer) => sending.start(answer),
        }
    }
}

/// The end of a connection is not an error, but to be replaced by another host is. Where credentials say who is who, the
/// broker then closes the connection, and the credential is of no more use here.
async fn ended(client: &BrokerClient) -> BrokerResult<()> {
    if client.end_reason().is_some_and(|end| end.code() == Some(ErrorCode::Displaced)) {
        tokio::time::timeout(CLOSES_SOON, client.closed()).await.ok();
    }
    match client.end_reason() {
        Some(end @ BrokerError::Auth { .. }) if client.is_closed() => return Err(end),
        Some(_) if client.is_closed() => return Ok(()),
        _ => {}
    }
    let reason = format!("another host took over the mailbox '{}'", client.me().session_id);
    Err(BrokerError::Rejected { code: Some(ErrorCode::Displaced), reason, id: None })
}

fn sent(calls: &mut Calls, answer: Arc<Answer>, outcome: BrokerResult<()>) -> Step {
    match outcome {
        Ok(()) => {
            calls.settle(&answer.request.id);
            Step::Nothing
        }
        // Its request has expired or was taken back. Should it only be forgotten and come again, the client has the answer.
        Err(BrokerError::Rejected { code: Some(ErrorCode::NotYourRequest), .. }) => {
            calls.settle(&answer.request.id);
            Step::Nothing
        }
        // Nobody knows whether it arrived; under the same id it counts once.
        Err(BrokerError::Timeout(_)) => Step::Send(answer),
        Err(error @ (BrokerError::Rejected { .. } | BrokerError::Body(_) | BrokerError::Address(_))) => {
            calls.refused(&answer, &error)
        }
        // The connection is gone; the answer waits for the next one.
        Err(_) => Step::Nothing,
    }
}

/// Answers on their way: no more than there are open calls.
struct Sending {
    client: Arc<BrokerClient>,
    tasks: JoinSet<(Arc<Answer>, BrokerResult<()>)>,
}

impl Sending {
    fn start(&mut self, answer: Arc<Answer>) {
        let client = Arc::clone(&self.client);
        self.tasks.spawn(async move {
            let outcome = client.reply_message(&answer.request, &answer.reply).await;
            (answer, outcome)
        });
    }

    async fn next(&mut self) -> Option<(Arc<Answer>, BrokerResult<()>)> {
        self.tasks.join_next().await.map(|sent| sent.expect("sending neither panics nor is aborted"))
    }
}
