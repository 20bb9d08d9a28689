//! The original JSON protocol, for the original broker and for ours. The host delivers its reply and acks the request
//! right after it: the broker handles a connection's frames in order, so the reply is stored first and no round trip is
//! spent on its receipt.

use anyhow::{Context, bail};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    load::{Load, ensure_echo},
    wire::{
        Source,
        client::{Numbers, Pending},
        outbox,
        tungstenite::{Reader, connect_text},
    },
};

/// The token of the original broker under test; ours uses the same.
pub const TOKEN: &str = "bench";

const HOST: &str = "host";
const CREATED_AT: &str = "2026-01-01T00:00:00Z";

pub async fn host(url: &str, ready: impl FnOnce()) -> anyhow::Result<()> {
    let (mut source, outbox) = connect(url, HOST).await?;
    ready();
    while let Some(text) = source.next().await? {
        let Some(request) = parse(&text)?.message else {
            continue;
        };
        let id = format!("{}-reply", request.id);
        let reply = Message {
            kind: "mcp_reply",
            correlation_id: Some(request.id),
            ..Message::request(&id, HOST, request.body)
        };
        send(&outbox, &Outgoing::Deliver { to: request.from.session_id, message: reply })?;
        send(&outbox, &Outgoing::Ack { id: request.id })?;
    }
    Ok(())
}

/// A worker connection whose calls are identified by the number in the message id.
pub struct Worker {
    name: String,
    outbox: UnboundedSender<Bytes>,
    pending: Pending,
    numbers: Numbers,
}

impl Worker {
    pub async fn connect(url: &str, number: u32) -> anyhow::Result<Self> {
        let name = format!("worker-{number}");
        let (source, outbox) = connect(url, &name).await?;
        let pending = Pending::default();
        let (replies, acks) = (pending.clone(), outbox.clone());
        tokio::spawn(async move {
            if let Err(error) = resolve_replies(source, &replies, &acks).await {
                eprintln!("worker connection ended: {error:#}");
            }
            replies.fail_all();
        });
        Ok(Self { name, outbox, pending, numbers: Numbers::default() })
    }
}

impl Load for Worker {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        let call = self.numbers.next();
        let reply = self.pending.expect(call);
        let id = format!("{}.{call}", self.name);
        let body_text: &RawValue = serde_json::from_slice(body).context("the body is JSON")?;
        let message = Message::request(&id, &self.name, body_text);
        send(&self.outbox, &Outgoing::Deliver { to: HOST, message })?;
        ensure_echo(body, &reply.await?)
    }
}

async fn resolve_replies(mut source: Reader, pending: &Pending, acks: &UnboundedSender<Bytes>) -> anyhow::Result<()> {
    while let Some(text) = source.next().await? {
        let Some(reply) = parse(&text)?.message else {
            continue;
        };
        let call = reply
            .correlation_id
            .and_then(|id| id.rsplit_once('.'))
            .and_then(|(_, call)| call.parse().ok())
            .context("a reply without the number of its call")?;
        let body = text.slice_ref(reply.body.get().as_bytes());
        pending.resolve(call, body);
        send(acks, &Outgoing::Ack { id: reply.id })?;
    }
    Ok(())
}

async fn connect(url: &str, name: &str) -> anyhow::Result<(Reader, UnboundedSender<Bytes>)> {
    let (mut source, sink) = connect_text(url).await?;
    let outbox = outbox(sink);
    let agent = Agent { session_id: name };
    send(&outbox, &Outgoing::Hello { agent, token: TOKEN })?;
    await_kind(&mut source, "welcome").await?;
    send(&outbox, &Outgoing::Subscribe)?;
    // Frames are handled in order, so this answer confirms the subscription.
    send(&outbox, &Outgoing::ListConnected { role: "none" })?;
    await_kind(&mut source, "connected").await?;
    Ok((source, outbox))
}

async fn await_kind(source: &mut Reader, kind: &str) -> anyhow::Result<()> {
    loop {
        let text = source.next().await?.context("the broker closed the connection")?;
        if parse(&text)?.kind == kind {
            return Ok(());
        }
    }
}

fn send(outbox: &UnboundedSender<Bytes>, frame: &Outgoing<'_>) -> anyhow::Result<()> {
    let text = serde_json::to_vec(frame).context("encode a frame")?;
    outbox.send(text.into()).context("the connection is closed")
}

fn parse(text: &[u8]) -> anyhow::Result<Incoming<'_>> {
    let frame: Incoming = serde_json::from_slice(text).context("decode a frame")?;
    if frame.kind == "error" {
        bail!("the broker reports: {}", String::from_utf8_lossy(text));
    }
    Ok(frame)
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Outgoing<'a> {
    Hello { agent: Agent<'a>, token: &'a str },
    Subscribe,
    Deliver { to: &'a str, message: Message<'a> },
    Ack { id: &'a str },
    ListConnected { role: &'a str },
}

#[derive(Deserialize)]
struct Incoming<'a> {
    kind: &'a str,
    #[serde(borrow)]
    message: Option<Message<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Agent<'a> {
    session_id: &'a str,
}

#[derive(Serialize, Deserialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(borrow)]
    from: Agent<'a>,
    kind: &'a str,
    #[serde(borrow)]
    body: &'a RawValue,
    created_at: &'a str,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
}

impl<'a> Message<'a> {
    fn request(id: &'a str, from: &'a str, body: &'a RawValue) -> Self {
        Self {
            id,
            from: Agent { session_id: from },
            kind: "mcp_request",
            body,
            created_at: CREATED_AT,
            correlation_id: None,
        }
    }
}
