//! Unsigned LEB128 numbers and length-prefixed strings: the primitives of the compact framing.

use crate::DecodeError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;

pub fn put(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub fn put_str(out: &mut BytesMut, text: &str) {
    put(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

pub fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub fn str_len(text: &str) -> usize {
    len(text.len() as u64) + text.len()
}

pub fn take(input: &mut Bytes) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        if input.is_empty() {
            return Err(DecodeError::Truncated);
        }
        let byte = input.get_u8();
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::BadNumber)
}

pub fn take_u8(input: &mut Bytes) -> Result<u8, DecodeError> {
    if input.is_empty() {
        return Err(DecodeError::Truncated);
    }
    Ok(input.get_u8())
}

/// Splits length-prefixed bytes off the front without copying. Returns `None` if the input is truncated.
pub fn split_slice<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut length = 0usize;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        length |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            let (slice, rest) = input.split_at_checked(length)?;
            *input = rest;
            return Some(slice);
        }
    }
    None
}

/// Takes a byte of flags. An unknown flag is an error, because the field that it announces can't be skipped.
pub fn take_flags(input: &mut Bytes, known: u8) -> Result<u8, DecodeError> {
    let flags = take_u8(input)?;
    if flags & !known != 0 {
        return Err(DecodeError::UnknownFlag);
    }
    Ok(flags)
}

pub fn take_i64(input: &mut Bytes) -> Result<i64, DecodeError> {
    if input.len() < 8 {
        return Err(DecodeError::Truncated);
    }
    Ok(input.get_i64_le())
}

pub fn take_slice(input: &mut Bytes) -> Result<Bytes, DecodeError> {
    let length = take(input)?;
    if length > input.len() as u64 {
        return Err(DecodeError::Truncated);
    }
    Ok(input.split_to(length as usize))
}

/// Takes a string that shares the memory of the input, after a check that it is UTF-8.
pub fn take_str(input: &mut Bytes) -> Result<ByteString, DecodeError> {
    ByteString::try_from(take_slice(input)?).map_err(|_| DecodeError::NotUtf8)
}
