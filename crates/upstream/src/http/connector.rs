//! Counts the TCP connections of an HTTP client. Over HTTP a new process of the server shows only as a new connection.

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tower_service::Service;

/// The connections of one client, and the requests that use them.
#[derive(Debug, Default)]
pub struct Connections {
    opened: AtomicU64,
    live: AtomicU64,
    busy: AtomicU64,
}

impl Connections {
    /// The number of connections that were opened so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Whether the next request opens a connection, because there is none or all are in use.
    pub fn would_open(&self) -> bool {
        self.live.load(Ordering::Relaxed) <= self.busy.load(Ordering::Relaxed)
    }

    /// Counts a request that uses a connection until the guard is dropped.
    pub fn begin_use(self: &Arc<Self>) -> InUse {
        self.busy.fetch_add(1, Ordering::Relaxed);
        InUse(Arc::clone(self))
    }
}

/// A request in progress.
pub struct InUse(Arc<Connections>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connector whose connections are counted.
#[derive(Clone)]
pub struct Counting<C> {
    pub inner: C,
    pub connections: Arc<Connections>,
}

impl<C: Service<Uri>> Service<Uri> for Counting<C>
where
    C::Future: Send + 'static,
{
    type Response = Counted<C::Response>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, connections) = (self.inner.call(uri), Arc::clone(&self.connections));
        Box::pin(async move {
            let inner = connecting.await?;
            connections.opened.fetch_add(1, Ordering::Relaxed);
            connections.live.fetch_add(1, Ordering::Relaxed);
            Ok(Counted { inner, connections })
        })
    }
}

/// A connection that is counted while it is open.
pub struct Counted<T> {
    inner: T,
    connections: Arc<Connections>,
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.connections.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T: Connection> Connection for Counted<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<T: Read + Unpin> Read for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }
}
