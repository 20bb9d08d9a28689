//! Reads request bodies, within limits of size and time.

use super::HttpOptions;
use crate::error;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::StatusCode;
use std::convert::Infallible;
use toolbus_mcp::{RpcError, codes};

/// Why the rest of a request body can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyError {
    /// The connection failed, or the body is malformed.
    BrokeOff(String),
    /// The agent has used up its share of the memory for such bodies.
    ShareFull,
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        Self::BrokeOff(error.to_string())
    }
}

impl From<Infallible> for BodyError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Status and error of the response to a request whose body was not read.
type Refusal = (StatusCode, RpcError);

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::BrokeOff(reason) => {
                invalid(StatusCode::BAD_REQUEST, format!("failed to read the request body: {reason}"))
            }
            BodyError::ShareFull => (StatusCode::TOO_MANY_REQUESTS, error::input_share_full()),
        }
    }
}

fn invalid(status: StatusCode, message: String) -> Refusal {
    (status, RpcError::new(codes::INVALID_REQUEST, message))
}

pub async fn read<B>(mut body: B, options: &HttpOptions) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    let limit = options.max_body_bytes;
    let too_large = || Err(invalid(StatusCode::PAYLOAD_TOO_LARGE, format!("request body larger than {limit} bytes")));
    if body.size_hint().lower() > limit as u64 {
        return too_large();
    }
    // A buffer that grows takes up to three times the memory of its content while it is copied. Memory that a client
    // only announces is reserved, but not used.
    let expected = body.size_hint().lower() as usize;
    let mut whole = BytesMut::new();
    loop {
        let Ok(frame) = tokio::time::timeout(options.body_patience, body.frame()).await else {
            return Err(invalid(StatusCode::REQUEST_TIMEOUT, "timeout while reading the request body".into()));
        };
        let data = match frame {
            None => return Ok(whole.freeze()),
            Some(frame) => frame.map_err(|error| error.into())?.into_data().unwrap_or_default(),
        };
        if whole.len() + data.len() > limit {
            return too_large();
        }
        if whole.is_empty() {
            whole.reserve(expected);
        }
        whole.extend_from_slice(&data);
    }
}
