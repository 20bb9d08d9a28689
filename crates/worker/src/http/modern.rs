//! The modern era over HTTP: every POST is independent. Headers are checked against the body, errors determine the HTTP
//! status, and closing the stream cancels the call.

use super::{HttpBody, HttpService, Principal, headers, reply, sse};
use crate::envelope::Envelope;
use crate::error;
use crate::frontend::{Frontend, FrontendCall};
use bytes::Bytes;
use futures_util::stream;
use hyper::{HeaderMap, Response, StatusCode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, Message, Notification, Request, RpcError, codes, is_plain_notification};
use xxhash_rust::xxh3::Xxh3;

pub async fn post(
    service: &Arc<HttpService>,
    principal: &Principal,
    headers: &HeaderMap,
    message: Message,
) -> Response<HttpBody> {
    let request = match message {
        Message::Request(request) => request,
        Message::Notification(notification) => {
            notify(service, principal, notification).await;
            return reply::empty(StatusCode::ACCEPTED);
        }
        Message::Response(response) => {
            let error = RpcError::new(codes::INVALID_REQUEST, "Invalid request: there is no pending client request");
            return reply::error(StatusCode::BAD_REQUEST, response.id, error);
        }
    };
    let id = request.id.clone();
    let worker = match service.worker(principal).await {
        Ok(worker) => worker,
        Err(refusal) => return reply::error(StatusCode::OK, Some(id), error::from_bus(&refusal)),
    };
    let envelope = match check_request(headers, &request, || worker.view()) {
        Ok(envelope) => envelope,
        Err(error) => return reply::error(StatusCode::BAD_REQUEST, Some(id), error),
    };
    let listens = request.method == "subscriptions/listen";
    let frontend = Frontend::new(worker, session_key(principal, &envelope));
    let mut call = frontend.request(Era::Modern, request).await;
    let quiet = if listens { Duration::ZERO } else { service.options.modern_quiet };
    let mut ready = VecDeque::new();
    // A listen ends with its stream.
    let stopping = if listens { CancellationToken::new() } else { service.stopping.clone() };
    match tokio::time::timeout(quiet, call.next_or_cut_off(&stopping)).await {
        Ok(Some(message @ Message::Response(_))) => return reply::json(reply::modern_status(&message), &message),
        Ok(Some(message)) => ready.push_back(message),
        Ok(None) => return reply::stream(stream::empty()),
        Err(_) => {}
    }
    reply::stream(events(call, ready, service.options.keepalive, stopping))
}

/// Forwards a notification that is not the protocol's own and says which client sent it. The others are ignored: a request
/// id in a cancellation could match a call of another client.
async fn notify(service: &Arc<HttpService>, principal: &Principal, notification: Notification) {
    let envelope = Envelope::read(notification.params.as_ref()).and_then(Envelope::with_known_version);
    let Some(envelope) = envelope.ok().filter(|_| !is_plain_notification(&notification.method)) else { return };
    let Ok(worker) = service.worker(principal).await else { return };
    let frontend = Frontend::new(worker, session_key(principal, &envelope));
    frontend.describe_client(&envelope);
    frontend.notification(Era::Modern, notification).await;
}

/// Runs the checks in the order in which the protocol requires errors to be reported.
fn check_request(
    headers: &HeaderMap,
    request: &Request,
    view: impl FnOnce() -> Arc<crate::view::View>,
) -> Result<Envelope, RpcError> {
    let envelope = Envelope::read(request.params.as_ref())?;
    headers::check_repeated(headers, request, &envelope)?;
    envelope.check_version()?;
    headers::check_params(headers, request, &view())?;
    Ok(envelope)
}

/// The session key at the host. Stable per client, so that a legacy server behind the host sees one client.
fn session_key(principal: &Principal, envelope: &Envelope) -> String {
    let mut hash = Xxh3::new();
    let info = envelope.client_info.as_ref().map_or("", |info| info.get());
    let role = principal.role.as_deref().unwrap_or_default();
    for part in [&principal.name, role, info, envelope.capabilities.get()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    ["modern-", &toolbus_base::hex(&hash.digest128().to_be_bytes())].concat()
}

/// The rest of a call as events. Dropped with the connection, which cancels the call.
fn events(
    call: FrontendCall,
    ready: VecDeque<Message>,
    keepalive: Duration,
    stopping: CancellationToken,
) -> impl futures_util::Stream<Item = Bytes> + Send + 'static {
    stream::unfold((Some(call), ready, stopping), move |(call, mut ready, stopping)| async move {
        if let Some(message) = ready.pop_front() {
            return Some((sse::event(&message), (call, ready, stopping)));
        }
        let mut call = call?;
        match tokio::time::timeout(keepalive, call.next_or_cut_off(&stopping)).await {
            Err(_) => Some((sse::KEEPALIVE, (Some(call), ready, stopping))),
            Ok(Some(message)) => {
                let is_last = matches!(message, Message::Response(_));
                Some((sse::event(&message), ((!is_last).then_some(call), ready, stopping)))
            }
            Ok(None) => None,
        }
    })
}
