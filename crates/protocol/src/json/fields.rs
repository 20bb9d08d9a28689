//! Reads single fields of frames.

use crate::{DecodeError, check_name};
use bytestring::ByteString;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Deserialises `null` as a present value, whereas a plain `Option` would treat it as absent.
pub(super) fn some_raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

pub(super) fn ranges(field: Option<Vec<(u64, u64)>>) -> Result<Vec<(u64, u64)>, DecodeError> {
    let ranges = field.ok_or(DecodeError::Missing("receipts", "ranges"))?;
    if ranges.iter().any(|(first, last)| first > last) {
        return Err(DecodeError::BadNumber);
    }
    Ok(ranges)
}

pub(super) fn required(
    field: Option<String>,
    frame: &'static str,
    name: &'static str,
) -> Result<ByteString, DecodeError> {
    let text = field.ok_or(DecodeError::Missing(frame, name))?;
    check_name(&text).map_err(DecodeError::BadName)?;
    Ok(text.into())
}

pub(super) fn name(text: Cow<'_, str>) -> Result<ByteString, DecodeError> {
    check_name(&text).map_err(DecodeError::BadName)?;
    Ok(ByteString::from(text.into_owned()))
}
