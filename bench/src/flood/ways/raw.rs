//! WebSocket messages that are written without a library, so that a hostile agent can send large ones at the cost of the
//! system calls, or parts of them.

use anyhow::Context;
use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt, Join, Sink},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
};

use super::frames;
use crate::{
    flood::hostile::Agent,
    wire::tungstenite::{Reader, dial, read_half},
};

/// Part of a large message that is written at a time.
const CHUNK: usize = 64 << 10;

/// A connection of the agent after its handshake.
pub struct RawSocket {
    pub reader: Reader<Join<OwnedReadHalf, Sink>>,
    pub writer: OwnedWriteHalf,
}

pub async fn open(agent: &Agent) -> anyhow::Result<RawSocket> {
    let mut socket = dial(&agent.bus).await?;
    socket.send(frames::hello(&agent.token).into()).await.context("say hello")?;
    // `welcome` and `broker_identity`. Nothing follows by itself, so the library has read no more than these.
    for _ in 0..2 {
        let answer = socket.next().await.context("closed in the handshake")?.context("read the welcome")?;
        agent.tally.answer(&answer.into_data());
    }
    let (reader, writer) = socket.into_inner().into_split();
    Ok(RawSocket { reader: read_half(reader).await, writer })
}

/// The header of a text message. It is masked, as it has to be, with zeros.
pub fn header(length: usize) -> Vec<u8> {
    const TEXT: u8 = 0x81;
    const MASKED: u8 = 0x80;
    let mut header = match length {
        0..126 => vec![TEXT, MASKED | length as u8],
        126..0x1_0000 => [&[TEXT, MASKED | 126][..], &(length as u16).to_be_bytes()].concat(),
        _ => [&[TEXT, MASKED | 127][..], &(length as u64).to_be_bytes()].concat(),
    };
    header.extend([0; 4]);
    header
}

/// Writes a text message: `filling` blanks between two texts.
pub async fn write(writer: &mut OwnedWriteHalf, before: &[u8], filling: usize, after: &[u8]) -> anyhow::Result<()> {
    let start = [header(before.len() + filling + after.len()), before.to_vec()].concat();
    writer.write_all(&start).await.context("write the begin of a message")?;
    filler(writer, filling).await?;
    writer.write_all(after).await.context("write the end of a message")
}

/// Writes blanks.
pub async fn filler(writer: &mut (impl AsyncWrite + Unpin), mut left: usize) -> anyhow::Result<()> {
    while left > 0 {
        let length = left.min(CHUNK);
        writer.write_all(&[b' '; CHUNK][..length]).await.context("write a part of a message")?;
        left -= length;
    }
    Ok(())
}
