//! A host on one connection: takes requests, lets `Calls` decide, sends the answers.

use crate::calls::{Answer, Calls, Step};
use std::sync::Arc;
use tokio::task::JoinSet;
use toolbus_client::{BrokerClient, BrokerError, BrokerResult, ErrorCode};

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
                None => return ended(&client),
            },
            cancelled = client.next_cancel() => match cancelled {
                Some(id) => calls.cancel(&id),
                None => return ended(&client),
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

/// The end of a connection is not an error, but to be replaced by another host is.
fn ended(client: &BrokerClient) -> BrokerResult<()> {
    if client.is_closed() {
        return Ok(());
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
