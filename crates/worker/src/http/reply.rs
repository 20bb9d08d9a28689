//! HTTP responses: JSON, empty, or an event stream.

use crate::error::AuthFailure;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use toolbus_mcp::{Id, Members, Message, Outcome, Response as RpcResponse, RpcError, codes};

/// The body of a response: complete, or an event stream of unlimited duration.
pub type HttpBody = UnsyncBoxBody<Bytes, Infallible>;

pub fn empty(status: StatusCode) -> Response<HttpBody> {
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = status;
    answer
}

pub fn json(status: StatusCode, message: &Message) -> Response<HttpBody> {
    json_text(status, message.to_json())
}

pub fn json_text(status: StatusCode, text: String) -> Response<HttpBody> {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

pub fn error(status: StatusCode, id: Option<Id>, error: RpcError) -> Response<HttpBody> {
    json(status, &RpcResponse { id, outcome: error.into() }.into())
}

/// The response 401 to a client that was not authenticated.
pub fn unauthorized(failure: &AuthFailure) -> Response<HttpBody> {
    let problem = RpcError::bus(failure.code().code(), failure.to_string(), failure.hint());
    let mut answer = error(StatusCode::UNAUTHORIZED, None, problem);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

pub fn stream(events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<HttpBody> {
    use futures_util::StreamExt;
    let frames = events.map(|event| Ok::<_, Infallible>(Frame::data(event)));
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

/// The HTTP status of a modern response, by its JSON-RPC error code.
pub fn modern_status(message: &Message) -> StatusCode {
    let Message::Response(RpcResponse { outcome: Outcome::Error(error), .. }) = message else { return StatusCode::OK };
    let code = Members::of(Some(error)).ok().and_then(|error| error.get("code")?.get().parse::<i64>().ok());
    match code {
        Some(codes::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(
            codes::PARSE_ERROR
            | codes::INVALID_REQUEST
            | codes::INVALID_PARAMS
            | codes::HEADER_MISMATCH
            | codes::MISSING_CAPABILITY
            | codes::UNSUPPORTED_VERSION,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}
