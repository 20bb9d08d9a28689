//! The seam for HTTP applications on the broker's port, such as the MCP endpoint.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What an application answers with: a page, or a stream that may go on for hours.
pub type AppBody = UnsyncBoxBody<Bytes, Infallible>;
pub type AppFuture = Pin<Box<dyn Future<Output = Response<AppBody>> + Send>>;

/// Answers requests of every method on one path. Host and Origin were checked before; who is asking was not.
pub trait HttpApp: Send + Sync + 'static {
    fn call(&self, request: Request<Incoming>) -> AppFuture;
}

/// Who is at the other end of the TCP connection; among the extensions of every request that reaches an application.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// The certificate (DER) that the peer proved to have; among the extensions too, where TLS has verified one.
#[derive(Debug, Clone)]
pub struct PeerCertificate(pub Bytes);

/// The longest pause in the middle of a request's body.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum BodyReadError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body did not go on for {0:?}")]
    TooSlow(Duration),
    #[error("the body broke off: {0}")]
    BrokeOff(hyper::Error),
}

/// Reads a request's body, up to a limit, from a peer that may be slow but not silent.
pub async fn read_body(mut body: Incoming, limit: usize, patience: Duration) -> Result<Bytes, BodyReadError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyReadError::TooLarge(limit));
    }
    let mut bytes = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await.map_err(|_| BodyReadError::TooSlow(patience))?;
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let Ok(data) = frame.map_err(BodyReadError::BrokeOff)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(BodyReadError::TooLarge(limit));
        }
        bytes.extend_from_slice(&data);
    }
}

/// A stream that ends in order when the server stops.
pub struct UntilStopped {
    body: AppBody,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilStopped {
    pub fn boxed(body: AppBody, stop: CancellationToken) -> AppBody {
        // A page of known length is not cut short.
        match body.size_hint().exact() {
            Some(_) => body,
            None => Self { body, stop: Box::pin(stop.cancelled_owned()) }.boxed_unsync(),
        }
    }
}

impl Body for UntilStopped {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => self.stop.as_mut().poll(cx).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
