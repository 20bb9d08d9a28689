//! Floods over one bus connection each.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::Value;

use super::{LARGE, frames, raw};
use crate::{
    flood::{
        hostile::Agent,
        tally::{Tally, kind_of},
    },
    wire::{
        Sink, Source,
        tungstenite::{Reader, Writer, connect_text},
    },
};

/// Large messages per second of one agent: 30 MiB/s.
const LARGE_PER_SECOND: f64 = 2.0;
/// Timeout of a handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Never,
    AndAcknowledging,
}

/// Sends large messages, at a rate that the machine's disk can take. They are neither built nor masked: what that costs on the
/// machine of the hostile agent is not what toolbus lets it do to others.
pub async fn flood_slowly(agent: &Agent, task: usize) -> anyhow::Result<()> {
    let pacer = agent.pacer.at(LARGE_PER_SECOND);
    let mut socket = raw::open(agent).await?;
    let tags: Arc<Mutex<Vec<u64>>> = Arc::default();
    raw::write(&mut socket.writer, br#"{"kind":"subscribe"}"#, 0, b"").await?;
    tokio::spawn(read(socket.reader, Arc::clone(&agent.tally), Arc::clone(&tags)));
    for number in (task as u64..).step_by(7) {
        pacer.wait().await;
        if let Some(acknowledgement) = acknowledgement(&tags) {
            raw::write(&mut socket.writer, acknowledgement.as_bytes(), 0, b"").await?;
        }
        agent.tally.sent();
        let (before, after) = frames::around_large(number);
        raw::write(&mut socket.writer, before.as_bytes(), LARGE, after.as_bytes()).await?;
    }
    Ok(())
}

/// Sends an unreadable frame and waits until the broker closes the connection.
pub async fn bad_frame(agent: &Agent, task: usize) -> anyhow::Result<()> {
    const GARBAGE: [&str; 4] = ["{", "\u{0}", r#"{"kind":"deliver","to":7}"#, r#"{"kind":"ack_tags","tags":"x"}"#];
    let mut number = task;
    loop {
        agent.pacer.wait().await;
        let (mut reader, mut writer) = open(agent).await?;
        write(&mut writer, GARBAGE[number % GARBAGE.len()].to_owned()).await?;
        agent.tally.sent();
        while let Some(answer) = reader.next().await? {
            agent.tally.answer(&answer);
        }
        number += 1;
    }
}

/// Connects under a new name of the agent.
pub async fn open(agent: &Agent) -> anyhow::Result<(Reader, Writer)> {
    let handshake = async {
        let (mut reader, mut writer) = connect_text(&agent.bus).await?;
        write(&mut writer, frames::hello(&agent.token)).await?;
        let welcome = reader.next().await?.context("closed in the handshake")?;
        ensure!(kind_of(&welcome) == Some("welcome"), "{}", String::from_utf8_lossy(&welcome));
        anyhow::Ok((reader, writer))
    };
    tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.context("timed out in the handshake")?
}

/// Sends frames as fast as the agent's rate allows.
pub async fn flood(agent: &Agent, task: usize, reading: Reading, frame: impl Fn(u64) -> String) -> anyhow::Result<()> {
    let (reader, mut writer) = open(agent).await?;
    let tags: Arc<Mutex<Vec<u64>>> = Arc::default();
    // Kept until the end, because dropping it would close the connection.
    let mut unread = None;
    match reading {
        Reading::Never => unread = Some(reader),
        Reading::AndAcknowledging => {
            write(&mut writer, r#"{"kind":"subscribe"}"#.to_owned()).await?;
            tokio::spawn(read(reader, Arc::clone(&agent.tally), Arc::clone(&tags)));
        }
    }
    for number in (task as u64..).step_by(7) {
        agent.pacer.wait().await;
        if let Some(acknowledgement) = acknowledgement(&tags) {
            write(&mut writer, acknowledgement).await?;
        }
        // Counted before it is written: the broker may close the connection before a large frame is complete.
        agent.tally.sent();
        write(&mut writer, frame(number)).await?;
    }
    drop(unread);
    Ok(())
}

/// The frame that acknowledges what was received since the last one.
fn acknowledgement(tags: &Mutex<Vec<u64>>) -> Option<String> {
    let received = std::mem::take(&mut *tags.lock().expect("no code panics while it holds this lock"));
    (!received.is_empty()).then(|| serde_json::json!({"kind": "ack_tags", "tags": received}).to_string())
}

async fn read(mut reader: impl Source, tally: Arc<Tally>, tags: Arc<Mutex<Vec<u64>>>) {
    while let Ok(Some(frame)) = reader.next().await {
        tally.answer(&frame);
        if kind_of(&frame) == Some("message")
            && let Ok(message) = serde_json::from_slice::<Value>(&frame)
            && let Some(tag) = message["tag"].as_u64()
        {
            tags.lock().expect("no code panics while it holds this lock").push(tag);
        }
    }
}

async fn write(writer: &mut Writer, frame: String) -> anyhow::Result<()> {
    writer.feed(Bytes::from(frame)).await?;
    writer.flush().await
}
