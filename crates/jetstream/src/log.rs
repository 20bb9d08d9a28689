//! The replicated log of a partition: a stream with one subject.

use crate::cluster::ANSWER;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt;
use std::error::Error;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolbus_cluster::{Append, AppendError, Bounds, LogError, ReplicatedLog};

/// How long an append is repeated. An election of the stream's leader takes up to 9 s.
const RESEND_FOR: Duration = Duration::from_secs(20);
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// How long a read waits for the next message, and how often other requests are repeated.
const NEXT_MESSAGE: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 12;
/// How long the answer about the room in the stream counts.
const ROOM_AGE: Duration = Duration::from_secs(1);
/// The reason of an error after a stop.
const STOPPED: &str = "the broker stops";
/// Room for the headers and the subject of a message.
const HEADERS: usize = 1 << 10;
/// Larger messages gain nothing.
const LARGEST_MESSAGE: usize = 1 << 20;

/// The log of one partition. Its methods block and must not be called from a task of the runtime.
pub struct JetStreamLog {
    context: Context,
    stream: Stream,
    subject: String,
    runtime: Handle,
    /// Ends all waits: the runtime is about to stop, and a request must not outlive it.
    stop: CancellationToken,
    /// When the outstanding append was not answered for the first time.
    sent_at: Mutex<Instant>,
    room: Mutex<Room>,
}

/// How much the stream can take.
struct Room {
    asked: Option<Instant>,
    bytes: u64,
}

impl JetStreamLog {
    pub(crate) fn new(
        context: Context,
        stream: Stream,
        subject: String,
        runtime: Handle,
        stop: CancellationToken,
    ) -> Self {
        Self {
            context,
            stream,
            subject,
            runtime,
            stop,
            sent_at: Mutex::new(Instant::now()),
            room: Mutex::new(Room { asked: None, bytes: u64::MAX }),
        }
    }

    /// Waits for a request. Returns `None` if the broker stops.
    fn wait<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(self.stop.run_until_cancelled(request))
    }

    /// Repeats a request that can be repeated, because no server answers it during an election.
    fn repeated<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        what: &'static str,
        mut request: impl FnMut() -> F,
    ) -> Result<T, LogError> {
        let repeating = self.wait(async {
            let mut reason = String::new();
            for attempt in 1..=ATTEMPTS {
                match request().await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => reason = error.to_string(),
                }
                tokio::time::sleep(wait_after(attempt)).await;
            }
            Err(LogError { what, reason })
        });
        repeating.unwrap_or_else(|| Err(LogError { what, reason: STOPPED.into() }))
    }

    async fn read_one(&self, sequence: u64) -> Result<Option<Bytes>, jetstream::stream::RawMessageError> {
        match self.stream.get_raw_message(sequence).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a range with a consumer. Stops at the first message that does not arrive in time.
    async fn read_range(&self, from: u64, to: u64, each: &mut dyn FnMut(u64, Bytes)) -> Result<u64, String> {
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ..pull::OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(text)?;
        let mut messages = consumer.messages().await.map_err(text)?;
        let mut next = from;
        while next <= to {
            let message = timeout(NEXT_MESSAGE, messages.next()).await.map_err(text)?;
            let message = message.ok_or("the consumer ended")?.map_err(text)?;
            let sequence = message.info().map_err(text)?.stream_sequence;
            if sequence > to {
                break;
            }
            each(sequence, message.message.payload.clone());
            next = sequence + 1;
        }
        Ok(next)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn wait_after(attempt: u32) -> Duration {
    (FIRST_WAIT * 2u32.saturating_pow(attempt.saturating_sub(1).min(16))).min(LONGEST_WAIT)
}

impl ReplicatedLog for JetStreamLog {
    fn append(&self, append: &Append) -> Result<u64, AppendError> {
        let mut message = PublishMessage::build().payload(append.payload.clone()).message_id(&append.id);
        if let Some(expected) = append.expected_last {
            message = message.expected_last_sequence(expected);
        }
        let appending = self.wait(async {
            let sent = self.context.send_publish(self.subject.clone(), message).await.map_err(append_error)?;
            let answer = timeout(ANSWER, sent.into_future()).await;
            let answer = answer.map_err(|elapsed| AppendError::Unknown(elapsed.to_string()))?;
            answer.map(|ack| ack.sequence).map_err(append_error)
        });
        appending.unwrap_or_else(|| Err(AppendError::Unknown(STOPPED.into())))
    }

    fn wait_to_resend(&self, attempt: u32) -> bool {
        let mut sent_at = self.sent_at.lock().unwrap_or_else(PoisonError::into_inner);
        if attempt == 1 {
            *sent_at = Instant::now();
        }
        if sent_at.elapsed() > RESEND_FOR || self.stop.is_cancelled() {
            return false;
        }
        std::thread::sleep(wait_after(attempt));
        true
    }

    fn bounds(&self) -> Result<Bounds, LogError> {
        let info = self.repeated("inspect", || self.stream.get_info())?;
        Ok(Bounds { first: info.state.first_sequence.max(1), last: info.state.last_sequence })
    }

    fn read(&self, from: u64, to: u64, each: &mut dyn FnMut(u64, Bytes)) -> Result<(), LogError> {
        if from == to {
            let found = self.repeated("read", || self.read_one(from))?;
            found.into_iter().for_each(|payload| each(from, payload));
            return Ok(());
        }
        let mut next = from;
        let mut reason = String::new();
        for attempt in 1..=ATTEMPTS {
            let mut reached = next;
            let read = self.wait(self.read_range(next, to, &mut |sequence, payload| {
                reached = sequence + 1;
                each(sequence, payload);
            }));
            next = reached;
            match read {
                Some(Ok(_)) => return Ok(()),
                Some(Err(error)) => reason = error,
                None => return Err(LogError { what: "read", reason: STOPPED.into() }),
            }
            if next > to {
                return Ok(());
            }
            std::thread::sleep(wait_after(attempt));
        }
        Err(LogError { what: "read", reason })
    }

    fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        self.repeated("purge", || self.stream.purge().sequence(sequence).into_future()).map(drop)
    }

    /// Asked several times a second: a stream without a limit needs no request, and during an election the last answer is
    /// good enough.
    fn free_bytes(&self) -> Result<u64, LogError> {
        let limit = u64::try_from(self.stream.cached_info().config.max_bytes).ok().filter(|limit| *limit > 0);
        let Some(limit) = limit else { return Ok(u64::MAX) };
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if room.asked.is_none_or(|at| at.elapsed() > ROOM_AGE) {
            room.asked = Some(Instant::now());
            let info = self.wait(async { timeout(ANSWER, self.stream.get_info()).await });
            if let Some(Ok(Ok(info))) = info {
                room.bytes = limit.saturating_sub(info.state.bytes);
            }
        }
        Ok(room.bytes)
    }

    fn max_message(&self) -> usize {
        self.context.client().server_info().max_payload.saturating_sub(HEADERS).min(LARGEST_MESSAGE)
    }
}

/// Only an answer of the server says that a message was not stored.
fn append_error(error: PublishError) -> AppendError {
    let code =
        error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()).map(jetstream::Error::error_code);
    match (error.kind(), code) {
        (PublishErrorKind::WrongLastSequence, _) => AppendError::Rejected,
        (_, Some(ErrorCode::STREAM_STORE_FAILED | ErrorCode::INSUFFICIENT_RESOURCES)) => AppendError::Full,
        _ => AppendError::Unknown(error.to_string()),
    }
}
