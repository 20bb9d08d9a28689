//! Connections that are kept open: idle, subscribed, or in the middle of a message.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    LARGE, bus,
    raw::{self, RawSocket},
};
use crate::{flood::hostile::Agent, wire::Source};

/// Timeout of the first answer on a connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

pub async fn bus_connections(agent: &Arc<Agent>, count: usize) -> anyhow::Result<()> {
    hold(agent, count, |agent| async move {
        let (mut reader, writer) = bus::open(&agent).await?;
        // The limit of an agent is checked behind the handshake.
        tokio::spawn(async move {
            while let Ok(Some(frame)) = reader.next().await {
                agent.tally.answer(&frame);
            }
        });
        Ok(writer)
    })
    .await
}

pub async fn http_connections(agent: &Arc<Agent>, count: usize) -> anyhow::Result<()> {
    hold(agent, count, |agent| post(agent, "server/discover")).await
}

pub async fn listens(agent: &Arc<Agent>, count: usize) -> anyhow::Result<()> {
    hold(agent, count, |agent| post(agent, "subscriptions/listen")).await
}

pub async fn half_frames(agent: &Arc<Agent>, count: usize) -> anyhow::Result<()> {
    hold(agent, count, half_frame).await
}

pub async fn half_bodies(agent: &Arc<Agent>, count: usize) -> anyhow::Result<()> {
    hold(agent, count, half_body).await
}

async fn half_frame(agent: Arc<Agent>) -> anyhow::Result<RawSocket> {
    let mut socket = raw::open(&agent).await?;
    socket.writer.write_all(&raw::header(LARGE)).await.context("write a header")?;
    raw::filler(&mut socket.writer, LARGE - 1).await?;
    Ok(socket)
}

async fn half_body(agent: Arc<Agent>) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(agent.address()).await.context("connect")?;
    stream.write_all(head(&agent, "tools/list", LARGE).as_bytes()).await.context("write a request")?;
    raw::filler(&mut stream, LARGE - 1).await?;
    Ok(stream)
}

/// Opens connections until there are `count`, and keeps them. A refused one is tried again.
async fn hold<T, F: Future<Output = anyhow::Result<T>>>(
    agent: &Arc<Agent>,
    count: usize,
    open: impl Fn(Arc<Agent>) -> F,
) -> anyhow::Result<()> {
    let mut held = Vec::new();
    while held.len() < count {
        agent.pacer.wait().await;
        agent.tally.sent();
        match open(Arc::clone(agent)).await {
            Ok(connection) => {
                agent.tally.count("held");
                held.push(connection);
            }
            Err(error) => {
                agent.tally.error(&error);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    std::future::pending().await
}

/// Sends a modern request and reads the beginning of its response.
async fn post(agent: Arc<Agent>, method: &str) -> anyhow::Result<TcpStream> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "hostile", "version": "1"},
    });
    let params = json!({"_meta": meta, "notifications": {"toolsListChanged": true}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let mut stream = TcpStream::connect(agent.address()).await.context("connect")?;
    let request = head(&agent, method, body.len()) + &body;
    stream.write_all(request.as_bytes()).await.context("write a request")?;
    let mut answer = [0; 512];
    let length = tokio::time::timeout(ANSWER_LIMIT, stream.read(&mut answer)).await.context("no answer")??;
    let answer = String::from_utf8_lossy(&answer[..length]);
    let status = answer.lines().next().unwrap_or("closed without an answer");
    ensure!(status.contains(" 200 "), "{status}");
    Ok(stream)
}

fn head(agent: &Agent, method: &str, length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n\
         content-length: {length}\r\n\r\n",
        agent.address(),
        agent.token
    )
}
