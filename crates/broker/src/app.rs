//! The interface for HTTP applications on the broker's port, such as the MCP endpoint.

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

/// Response body of an application: a buffered page, or a stream that may stay open for hours.
pub type AppBody = UnsyncBoxBody<Bytes, Infallible>;
/// Future returned by [`HttpApp::call`].
pub type AppFuture = Pin<Box<dyn Future<Output = Response<AppBody>> + Send>>;

/// Handles requests of all methods on one path. The `Host` and `Origin` headers are already checked; the peer is not
/// authenticated.
pub trait HttpApp: Send + Sync + 'static {
    /// Handles one request.
    fn call(&self, request: Request<Incoming>) -> AppFuture;

    /// Called once when the server stops, before it ends the streams and connections of the application.
    fn stopping(&self) {}
}

/// Address of the TCP peer; an extension of every request that is passed to an application.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// The peer's client certificate (DER), verified by TLS; a request extension if the peer presented one.
#[derive(Debug, Clone)]
pub struct PeerCertificate(pub Bytes);

/// Maximum wait for the next part of a request body.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// Why [`read_body`] failed.
#[derive(Debug, thiserror::Error)]
pub enum BodyReadError {
    /// The body exceeds the limit (in bytes).
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The next part of the body did not arrive within the timeout.
    #[error("timeout: no more of the body arrived within {0:?}")]
    TooSlow(Duration),
    /// The connection failed before the end of the body.
    #[error("the connection failed before the end of the body: {0}")]
    BrokeOff(hyper::Error),
}

/// Reads a request body of at most `limit` bytes. `patience` bounds the wait for each part, not the whole read.
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

/// A streaming body that ends cleanly when the server stops.
pub struct UntilStopped {
    body: AppBody,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilStopped {
    pub fn boxed(body: AppBody, stop: CancellationToken) -> AppBody {
        // A body with an exact size is sent in full: cutting it would break its Content-Length.
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
