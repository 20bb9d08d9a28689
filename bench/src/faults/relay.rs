//! Forwards the bytes of a connection, under a control that can hold them back or cut the connection.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Close,
    Reset,
}

/// Decides about the bytes of a connection, in both directions.
pub trait Control: Sync {
    /// Returns how many of `count` bytes to forward, and whether to cut the connection after them.
    fn admit(&self, count: usize) -> impl Future<Output = (usize, Option<Cut>)> + Send;

    /// Waits until a side may learn that the other one closed the connection.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Forwards bytes in both directions until a side closes or the connection is cut; returns whether it was cut.
pub async fn relay(near: TcpStream, far: TcpStream, control: &impl Control) -> bool {
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let cut = tokio::select! {
        cut = forward(&mut near_read, &mut far_write, control) => cut,
        cut = forward(&mut far_read, &mut near_write, control) => cut,
    };
    if cut == Some(Cut::Reset) {
        near_write.as_ref().set_zero_linger().ok();
        far_write.as_ref().set_zero_linger().ok();
    }
    cut.is_some()
}

/// Returns `None` when a side closed.
async fn forward(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, control: &impl Control) -> Option<Cut> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut buffer).await.unwrap_or_default();
        if count == 0 {
            control.close().await;
            return None;
        }
        let (forwarded, cut) = control.admit(count).await;
        if to.write_all(&buffer[..forwarded]).await.is_err() {
            control.close().await;
            return None;
        }
        if cut.is_some() {
            return cut;
        }
    }
}
