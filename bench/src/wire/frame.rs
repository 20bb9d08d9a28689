//! The message layout of contenders without one of their own: worker number, call number and body. A reply repeats all
//! three.

use anyhow::Context;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The worker number under which the host registers.
pub const HOST: u32 = 0;

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub worker: u32,
    pub call: u64,
    pub body: Bytes,
}

pub fn encode(worker: u32, call: u64, body: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(12 + body.len());
    message.put_u32(worker);
    message.put_u64(call);
    message.put_slice(body);
    message.freeze()
}

pub fn decode(mut message: Bytes) -> anyhow::Result<Frame> {
    let too_short = "message too short";
    Ok(Frame {
        worker: message.try_get_u32().context(too_short)?,
        call: message.try_get_u64().context(too_short)?,
        body: message,
    })
}

/// The worker number of a message, the only field that a relay reads.
pub fn worker(message: &[u8]) -> Option<u32> {
    message.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_decoded_as_it_was_encoded() {
        let message = encode(7, 9, b"body");
        assert_eq!(worker(&message), Some(7));
        let expected = Frame { worker: 7, call: 9, body: Bytes::from_static(b"body") };
        assert_eq!(decode(message).unwrap(), expected);
        assert!(decode(Bytes::from_static(b"short")).is_err());
    }
}
