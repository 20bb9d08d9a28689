//! What a client can ask the broker about this moment: everything at once, or single peers, messages and mailboxes.

use crate::asked::Question;
use crate::client::BrokerClient;
use crate::error::{BrokerError, BrokerResult};
use tokio::sync::oneshot;
use toolbus_protocol::{ClientFrame, Inspect, Inspected, MAX_INSPECTED, MsgId, Status};

impl BrokerClient {
    /// Who is connected and what waits where.
    pub async fn status(&self) -> BrokerResult<Status> {
        self.check_answers("tell its status")?;
        let request_id = MsgId::new().into_inner();
        let _question = Question { shared: &self.shared, id: request_id.clone() };
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if session.is_connected() {
                session.asked.statuses.insert(request_id.clone(), sender);
                session.send(ClientFrame::Status { request_id });
            }
        });
        self.await_answer(answer).await?
    }

    /// Whether peers are connected, how far messages are from their turn, what waits in a mailbox. Of peers and of letters
    /// at most [`MAX_LOOKED_AT`] at a time. The request's id is filled in here. A broker of version 2 that does not know
    /// the question yet never answers it: the wait ends with [`crate::ClientOptions::receipt_timeout`].
    pub async fn inspect(&self, inspect: Inspect) -> BrokerResult<Inspected> {
        self.check_answers("let its clients look")?;
        if inspect.peers.len().max(inspect.messages.len()) > MAX_INSPECTED {
            let reason = format!("more than {MAX_INSPECTED} at a time");
            return Err(BrokerError::Rejected { code: None, reason, id: None });
        }
        let request_id = MsgId::new().into_inner();
        let _question = Question { shared: &self.shared, id: request_id.clone() };
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if session.is_connected() {
                session.asked.looks.insert(request_id.clone(), sender);
                session.send(ClientFrame::Inspect(Inspect { request_id, ..inspect }));
            }
        });
        self.await_answer(answer).await?
    }

    /// Whether the broker would not take that reply of ours, because it knows of no such request. It has forgotten it in a
    /// crash, or the request expired.
    pub fn reply_was_refused(&self, to: &str, reply_id: &str) -> bool {
        self.shared.lock().unplaced.has(to, reply_id)
    }

    /// A broker that does not know a question would leave it unanswered.
    fn check_answers(&self, what: &str) -> BrokerResult<()> {
        match self.shared.lock().terms.version < 2 {
            true => Err(BrokerError::Protocol(format!("this broker does not {what}"))),
            false => Ok(()),
        }
    }
}
