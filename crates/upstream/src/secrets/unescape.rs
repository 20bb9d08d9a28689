//! Text with the escapes of JSON decoded, and a mapping back to the original. For searching only: a decoded character may
//! be part of the JSON syntax, so the text must not be written in this form.

use std::ops::Range;

pub(super) struct Unescaped {
    pub text: String,
    /// For each byte of the text, the start and end of its origin.
    origins: Vec<(usize, usize)>,
}

impl Unescaped {
    /// Decodes the text as if it were the content of a JSON string. Backslashes that begin no escape stay.
    pub fn of(from: &str) -> Self {
        Self::decoded(from, |start, end| (start, end))
    }

    /// Decodes once more, for JSON that is nested in a string. `None` if there is no escape left.
    pub fn again(&self) -> Option<Self> {
        let origin = |start: usize, end: usize| (self.origins[start].0, self.origins[end - 1].1);
        self.text.contains('\\').then(|| Self::decoded(&self.text, origin))
    }

    fn decoded(from: &str, origin: impl Fn(usize, usize) -> (usize, usize)) -> Self {
        let mut read = Self { text: String::with_capacity(from.len()), origins: Vec::with_capacity(from.len()) };
        let mut at = 0;
        while let Some(first) = from[at..].chars().next() {
            let (c, end) = escape(from, at).unwrap_or((first, at + first.len_utf8()));
            read.text.push(c);
            read.origins.resize(read.text.len(), origin(at, end));
            at = end;
        }
        read
    }

    /// The range of the original that a range of the text was decoded from.
    pub fn source_range(&self, part: Range<usize>) -> Range<usize> {
        let start = self.origins.get(part.start).map_or(0, |origin| origin.0);
        let end = part.end.checked_sub(1).and_then(|last| self.origins.get(last)).map_or(start, |origin| origin.1);
        start..end
    }
}

/// The character of an escape at this offset, and the end of the escape.
fn escape(from: &str, at: usize) -> Option<(char, usize)> {
    let kind = from[at..].strip_prefix('\\')?.bytes().next()?;
    let character = match kind {
        b'"' | b'\\' | b'/' => char::from(kind),
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => return code_point(from, at),
        _ => return None,
    };
    Some((character, at + 2))
}

/// One `\uXXXX`, or two that are a surrogate pair.
fn code_point(from: &str, at: usize) -> Option<(char, usize)> {
    let (first, end) = unit(from, at)?;
    if let Some(c) = char::from_u32(u32::from(first)) {
        return Some((c, end));
    }
    let (second, end) = unit(from, end)?;
    let c = char::decode_utf16([first, second]).next()?.ok()?;
    Some((c, end))
}

/// One `\uXXXX`, and its end.
fn unit(from: &str, at: usize) -> Option<(u16, usize)> {
    let digits = from.get(at..)?.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some((unit, at + 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_mapped_back() {
        let from = r#"ä\u0041\\\u00e4x\ud83d\ude00\ud83dy\n\/\"\s"#;
        let read = Unescaped::of(from);
        assert_eq!(read.text, "äA\\äx😀\\ud83dy\n/\"\\s");
        let source_range = |part: &str| {
            let at = read.text.find(part).expect("part of the text");
            &from[read.source_range(at..at + part.len())]
        };
        assert_eq!(
            (source_range("A\\äx"), source_range("😀"), source_range("\n/\"")),
            (r"\u0041\\\u00e4x", r"\ud83d\ude00", r#"\n\/\""#)
        );
    }

    #[test]
    fn nested_escapes_are_mapped_back_to_the_outermost_text() {
        let from = r"x\\u0041\\\\\\u00e4y";
        let nested = Unescaped::of(from).again().expect("escapes are left");
        assert_eq!(nested.text, r"xA\äy");
        assert_eq!(&from[nested.source_range(1..5)], r"\\u0041\\\\\\u00e4");
        assert!(Unescaped::of("x").again().is_none());
    }
}
