//! A request body that counts against the share of the agent that sends it.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use toolbus_broker::PeerConnection;
use toolbus_worker::BodyError;

pub struct MeteredBody {
    body: Incoming,
    connection: Option<PeerConnection>,
    received: u64,
}

impl MeteredBody {
    pub fn new(body: Incoming, connection: Option<PeerConnection>) -> Self {
        Self { body, connection, received: 0 }
    }

    fn hold(&self, bytes: u64) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.hold_input(bytes))
    }
}

impl Body for MeteredBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // What a client announces counts at once, so that a body which will not fit is not read at all.
        if !self.hold(self.received + self.body.size_hint().lower()) {
            return Poll::Ready(Some(Err(BodyError::ShareFull)));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::BrokeOff(error.to_string())))),
            None => return Poll::Ready(None),
        };
        self.received += frame.data_ref().map_or(0, Bytes::len) as u64;
        let is_admitted = self.hold(self.received + self.body.size_hint().lower());
        Poll::Ready(Some(if is_admitted { Ok(frame) } else { Err(BodyError::ShareFull) }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        let is_released = self.hold(0);
        debug_assert!(is_released, "less input always fits");
    }
}
