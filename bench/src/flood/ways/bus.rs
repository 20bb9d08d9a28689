//! Floods over one bus connection each.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::Value;

use super::frames;
use crate::{
    flood::{
        hostile::Agent,
        pacer::Pacer,
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

/// Sends frames as fast as the agent's rate allows.
pub async fn flood(agent: &Agent, task: usize, reading: Reading, frame: impl Fn(u64) -> String) -> anyhow::Result<()> {
    send(agent, task, reading, &agent.pacer, frame).await
}

/// Sends large frames, at a rate that the machine's disk can take.
pub async fn flood_slowly(agent: &Agent, task: usize, frame: impl Fn(u64) -> String) -> anyhow::Result<()> {
    send(agent, task, Reading::AndAcknowledging, &agent.pacer.at(LARGE_PER_SECOND), frame).await
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

async fn send(
    agent: &Agent,
    task: usize,
    reading: Reading,
    pacer: &Pacer,
    frame: impl Fn(u64) -> String,
) -> anyhow::Result<()> {
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
        pacer.wait().await;
        let received = std::mem::take(&mut *tags.lock().expect("no code panics while it holds this lock"));
        if !received.is_empty() {
            write(&mut writer, serde_json::json!({"kind": "ack_tags", "tags": received}).to_string()).await?;
        }
        // Counted before it is written: the broker may close the connection before a large frame is complete.
        agent.tally.sent();
        write(&mut writer, frame(number)).await?;
    }
    drop(unread);
    Ok(())
}

async fn read(mut reader: Reader, tally: Arc<Tally>, tags: Arc<Mutex<Vec<u64>>>) {
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
