//! One request of the client, from its arrival to its answer: a sequence of messages, the response last.

use super::Frontend;
use super::joined::Joined;
use super::listen::Listen;
use super::upstream_call::UpstreamCall;
use crate::bus::BoxFuture;
use crate::worker::lock;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Id, Message, Outcome, Response};

/// Dropping it before its end cancels what it started.
pub struct FrontendCall {
    pub(super) frontend: Arc<Frontend>,
    pub(super) number: Option<u64>,
    pub(super) id: Id,
    work: Work,
    abort: CancellationToken,
    /// It was begun for another request.
    pub(super) joined: Option<Joined>,
}

/// What has to be done for an answer.
pub(super) enum Work {
    /// The answer is known, or nothing is owed (any more).
    Ready(Option<Outcome>),
    /// Several servers are asked, and one answer is made of theirs.
    Gather(BoxFuture<'static, Outcome>),
    Upstream(UpstreamCall),
    Listen(Listen),
}

/// What a piece of work brings next.
pub(super) enum Step {
    Message(Message),
    Done(Outcome),
    /// The call was cancelled: nothing is owed.
    Nothing,
}

impl FrontendCall {
    pub(super) fn new(
        frontend: &Arc<Frontend>,
        number: Option<u64>,
        id: Id,
        work: Work,
        abort: CancellationToken,
    ) -> Self {
        Self { frontend: Arc::clone(frontend), number, id, work, abort, joined: None }
    }

    pub(super) fn set_work(&mut self, work: Work) {
        self.work = work;
    }

    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// The client's id of the request.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next message for the client; the response is the last. `None` afterwards, or when the call was cancelled and
    /// nothing is owed. Giving up the wait loses nothing.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            let message = self.next_of_work().await?;
            let Some(joined) = &self.joined else { return Some(message) };
            if let Some(message) = joined.translate(message) {
                return Some(message);
            }
        }
    }

    async fn next_of_work(&mut self) -> Option<Message> {
        let step = match &mut self.work {
            Work::Ready(outcome) => outcome.take().map_or(Step::Nothing, Step::Done),
            work => tokio::select! {
                biased;
                step = work.step(&self.frontend, &self.id) => step,
                () = self.abort.cancelled() => Step::Nothing,
            },
        };
        match step {
            Step::Message(message) => Some(message),
            Step::Done(outcome) => {
                self.end();
                Some(Response { id: Some(self.id.clone()), outcome }.into())
            }
            Step::Nothing => {
                self.end();
                None
            }
        }
    }

    fn end(&mut self) {
        self.work = Work::Ready(None);
        if let Some(number) = self.number.take() {
            lock(&self.frontend.state).calls.remove(&number);
        }
    }
}

impl Drop for FrontendCall {
    fn drop(&mut self) {
        self.end();
    }
}

impl Work {
    async fn step(&mut self, frontend: &Arc<Frontend>, id: &Id) -> Step {
        match self {
            Self::Ready(outcome) => outcome.take().map_or(Step::Nothing, Step::Done),
            Self::Gather(answer) => Step::Done(answer.await),
            Self::Upstream(call) => call.step(frontend, id).await,
            Self::Listen(listen) => listen.step(frontend, id).await,
        }
    }
}
