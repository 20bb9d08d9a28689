//! JSON-RPC batches of clients that negotiated version 2025-03-26. The responses are a batch as well if they come soon and
//! alone, otherwise the events of a stream. That stream can't be resumed; its calls go on if it breaks, as others do.

use super::legacy::{begin, session};
use super::{HttpBody, HttpService, Principal, reply, sse};
use crate::stdio::{batches, check_batched};
use bytestring::ByteString;
use futures_util::stream::{self, BoxStream, StreamExt};
use hyper::{HeaderMap, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Era, Message, MessageError, Response as RpcResponse, parse_batch};

pub async fn post(
    service: &Arc<HttpService>,
    principal: &Principal,
    headers: &HeaderMap,
    text: &ByteString,
) -> Response<HttpBody> {
    let session = match session(service, principal, headers).await {
        Ok(session) => session,
        Err((status, error)) => return reply::error(status, None, error),
    };
    let batch = match session.frontend.accepts_batches() {
        true => parse_batch(text),
        false => Err(MessageError::Batch),
    };
    let batch = match batch {
        Ok(batch) => batch,
        Err(error) => return reply::error(StatusCode::BAD_REQUEST, None, error.to_rpc_error()),
    };
    let (mut answered, mut running) = (Vec::new(), Vec::new());
    for message in batch {
        match message {
            Ok(Message::Request(request)) => {
                if let Err(error) = check_batched(&request) {
                    answered.push(RpcResponse { id: Some(request.id), outcome: error.into() }.into());
                    continue;
                }
                match begin(service, principal, Arc::clone(&session), request).await {
                    Ok(exchange) => running.push(exchange.messages().boxed()),
                    Err(response) => answered.push(response),
                }
            }
            Ok(Message::Notification(notification)) => {
                session.frontend.notification(Era::Legacy, notification).await;
            }
            Ok(Message::Response(response)) => session.frontend.response(response).await,
            Err(error) => {
                let id = error.id().cloned();
                answered.push(RpcResponse { id, outcome: error.to_rpc_error().into() }.into());
            }
        }
    }
    if answered.is_empty() && running.is_empty() {
        return reply::empty(StatusCode::ACCEPTED);
    }
    let messages = stream::iter(answered).chain(stream::select_all(running)).boxed();
    respond(messages, service.options.legacy_quiet, service.options.keepalive).await
}

async fn respond(
    mut messages: BoxStream<'static, Message>,
    quiet: Duration,
    keepalive: Duration,
) -> Response<HttpBody> {
    let mut first = Vec::new();
    let all_responses = async {
        while let Some(message) = messages.next().await {
            let is_response = matches!(message, Message::Response(_));
            first.push(message);
            if !is_response {
                return false;
            }
        }
        true
    };
    if tokio::time::timeout(quiet, all_responses).await == Ok(true) {
        return reply::json_text(StatusCode::OK, batches::to_text(&first));
    }
    let first = stream::iter(first.into_iter().map(|message| sse::event(&message)).collect::<Vec<_>>());
    let rest = stream::unfold(messages, move |mut messages| async move {
        let event = match tokio::time::timeout(keepalive, messages.next()).await {
            Ok(message) => sse::event(&message?),
            Err(_) => sse::KEEPALIVE,
        };
        Some((event, messages))
    });
    reply::stream(first.chain(rest))
}
