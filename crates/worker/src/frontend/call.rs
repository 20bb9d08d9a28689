//! One request of the client as a sequence of messages, the response last.

use super::Frontend;
use super::joined::Joined;
use super::listen::Listen;
use super::upstream_call::UpstreamCall;
use crate::bus::BoxFuture;
use crate::error;
use crate::worker::lock;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Id, Message, Outcome, Response};

/// A running request of the client. Dropping it before its response cancels the call.
pub struct FrontendCall {
    pub(super) frontend: Arc<Frontend>,
    pub(super) number: Option<u64>,
    pub(super) id: Id,
    work: Work,
    abort: CancellationToken,
    /// Set if the call was started by an earlier request and joined by this one.
    pub(super) joined: Option<Joined>,
}

/// How the response of a request is obtained.
pub(super) enum Work {
    /// The outcome is known; `None` once it was sent, or if the call ends without a response.
    Ready(Option<Outcome>),
    /// One response made of the answers of several servers, or of admin queries.
    Gather(BoxFuture<'static, Outcome>),
    Upstream(UpstreamCall),
    Listen(Listen),
}

/// The next item of a call.
pub(super) enum CallStep {
    Message(Message),
    Done(Outcome),
    /// The call was cancelled and gets no response.
    Cancelled,
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

    /// The session that this call belongs to.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// The client's request id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next message for the client; the response is the last. `None` after it, or if the call was cancelled.
    /// Cancellation-safe.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            let message = self.next_untranslated().await?;
            let Some(joined) = &self.joined else { return Some(message) };
            if let Some(message) = joined.translate(message) {
                return Some(message);
            }
        }
    }

    /// Like [`FrontendCall::next`], but ends with an error when the endpoint stops.
    pub async fn next_or_cut_off(&mut self, stopping: &CancellationToken) -> Option<Message> {
        tokio::select! {
            biased;
            message = self.next() => message,
            () = stopping.cancelled() => {
                self.end();
                Some(Response { id: Some(self.id.clone()), outcome: error::cut_off().into() }.into())
            }
        }
    }

    async fn next_untranslated(&mut self) -> Option<Message> {
        let step = match &mut self.work {
            Work::Ready(outcome) => outcome.take().map_or(CallStep::Cancelled, CallStep::Done),
            work => tokio::select! {
                biased;
                step = work.step(&self.frontend, &self.id) => step,
                () = self.abort.cancelled() => CallStep::Cancelled,
            },
        };
        match step {
            CallStep::Message(message) => Some(message),
            CallStep::Done(outcome) => {
                self.end();
                Some(Response { id: Some(self.id.clone()), outcome }.into())
            }
            CallStep::Cancelled => {
                self.end();
                None
            }
        }
    }

    fn end(&mut self) {
        if let Work::Upstream(call) = &mut self.work {
            call.leave(self.frontend.worker.is_detached());
        }
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
    async fn step(&mut self, frontend: &Arc<Frontend>, id: &Id) -> CallStep {
        match self {
            Self::Ready(outcome) => outcome.take().map_or(CallStep::Cancelled, CallStep::Done),
            Self::Gather(answer) => CallStep::Done(answer.await),
            Self::Upstream(call) => call.step(frontend, id).await,
            Self::Listen(listen) => listen.step(frontend, id).await,
        }
    }
}
