//! The binary form of the values in frames between brokers. Lengths and numbers have a fixed size: a link is inside one data
//! centre, and both ends have the same version or refuse each other.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use std::sync::Arc;

/// A value in a frame. `read` returns `None` if the bytes are no such value.
pub trait Value: Sized {
    fn write(&self, out: &mut BytesMut);
    fn read(input: &mut Bytes) -> Option<Self>;
}

/// Implements [`Value`] for structs and enums from the list of their fields. Every variant has a number of its own, which
/// must not change.
macro_rules! values {
    ($(struct $type:ident { $($field:ident),* $(,)? })*) => {
        $(impl Value for $type {
            fn write(&self, out: &mut BytesMut) {
                let $type { $($field),* } = self;
                $($field.write(out);)*
            }
            fn read(input: &mut Bytes) -> Option<Self> {
                Some($type { $($field: Value::read(input)?),* })
            }
        })*
    };
    ($(enum $type:ident { $($number:literal $variant:ident $({ $($field:ident),* $(,)? })? $(( $inner:ident ))?),* $(,)? })*) => {
        $(impl Value for $type {
            fn write(&self, out: &mut BytesMut) {
                match self {
                    $($type::$variant $({ $($field),* })? $(( $inner ))? => {
                        ($number as u8).write(out);
                        $($($field.write(out);)*)?
                        $($inner.write(out);)?
                    })*
                }
            }
            fn read(input: &mut Bytes) -> Option<Self> {
                match u8::read(input)? {
                    $($number => Some($type::$variant $({ $($field: Value::read(input)?),* })? $(({ let $inner = Value::read(input)?; $inner }))?),)*
                    _ => None,
                }
            }
        })*
    };
}
pub(super) use values;

macro_rules! numbers {
    ($($type:ident $put:ident $get:ident $bytes:literal),*) => {
        $(impl Value for $type {
            fn write(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
            fn read(input: &mut Bytes) -> Option<Self> {
                (input.len() >= $bytes).then(|| input.$get())
            }
        })*
    };
}
numbers!(u8 put_u8 get_u8 1, u16 put_u16 get_u16 2, u32 put_u32 get_u32 4, u64 put_u64 get_u64 8);

impl Value for usize {
    fn write(&self, out: &mut BytesMut) {
        (*self as u64).write(out);
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        u64::read(input)?.try_into().ok()
    }
}

impl Value for bool {
    fn write(&self, out: &mut BytesMut) {
        u8::from(*self).write(out);
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        match u8::read(input)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Value for Bytes {
    fn write(&self, out: &mut BytesMut) {
        (self.len() as u32).write(out);
        out.put_slice(self);
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        let length = u32::read(input)? as usize;
        (input.len() >= length).then(|| input.split_to(length))
    }
}

impl Value for ByteString {
    fn write(&self, out: &mut BytesMut) {
        (self.len() as u32).write(out);
        out.put_slice(self.as_bytes());
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        ByteString::try_from(Bytes::read(input)?).ok()
    }
}

impl Value for Arc<str> {
    fn write(&self, out: &mut BytesMut) {
        (self.len() as u32).write(out);
        out.put_slice(self.as_bytes());
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        Some(Arc::from(&*ByteString::read(input)?))
    }
}

impl<T: Value> Value for Option<T> {
    fn write(&self, out: &mut BytesMut) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        Some(if bool::read(input)? { Some(T::read(input)?) } else { None })
    }
}

impl<T: Value> Value for Vec<T> {
    fn write(&self, out: &mut BytesMut) {
        (self.len() as u32).write(out);
        self.iter().for_each(|value| value.write(out));
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        let length = u32::read(input)? as usize;
        // Every value takes at least a byte, so a forged length allocates no more than the frame.
        (length <= input.len()).then_some(())?;
        (0..length).map(|_| T::read(input)).collect()
    }
}

impl<T: Value> Value for Box<T> {
    fn write(&self, out: &mut BytesMut) {
        (**self).write(out);
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        T::read(input).map(Box::new)
    }
}
