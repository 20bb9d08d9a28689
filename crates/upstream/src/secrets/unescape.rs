//! Text with the escapes of JSON decoded, and a mapping back to the original. For searching only: a decoded character may
//! be part of the JSON syntax, so the text must not be written in this form.

use std::ops::Range;

pub(super) struct Unescaped {
    pub text: String,
    /// For each byte of the text, the start and end of its origin.
    origins: Vec<(usize, usize)>,
}

impl Unescaped {
    /// Accepts any number of backslashes: in nested JSON strings they are doubled. Other backslashes become a single one,
    /// so that a text has the same form at every depth.
    pub fn of(from: &str) -> Self {
        let mut read = Self { text: String::with_capacity(from.len()), origins: Vec::with_capacity(from.len()) };
        let mut at = 0;
        while let Some(first) = from[at..].chars().next() {
            let (c, end) = escape(from, at).unwrap_or((first, at + first.len_utf8()));
            read.text.push(c);
            read.origins.resize(read.text.len(), (at, end));
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
    let rest = &from[at..];
    let backslashes = rest.bytes().take_while(|byte| *byte == b'\\').count();
    if backslashes == 0 {
        return None;
    }
    if let Some((unit, end)) = unit(from, at) {
        let character = char::from_u32(u32::from(unit)).map(|c| (c, end));
        return character.or_else(|| unit_pair(unit, self::unit(from, end)));
    }
    let end = at + backslashes;
    let character = match from.as_bytes().get(end) {
        Some(c @ (b'/' | b'"')) => char::from(*c),
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        _ => return Some(('\\', end)),
    };
    Some((character, end + 1))
}

fn unit_pair(first: u16, second: Option<(u16, usize)>) -> Option<(char, usize)> {
    let (second, end) = second?;
    let c = char::decode_utf16([first, second]).next()?.ok()?;
    Some((c, end))
}

/// One `\uXXXX`, and its end.
fn unit(from: &str, at: usize) -> Option<(u16, usize)> {
    let rest = from.get(at..)?;
    let backslashes = rest.bytes().take_while(|byte| *byte == b'\\').count();
    let digits = rest.get(backslashes..)?.strip_prefix('u')?.get(..4).filter(|_| backslashes > 0)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some((unit, at + backslashes + 5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_at_every_depth_and_mapped_back() {
        let from = r#"ä\u0041\\\u00e4x\ud83d\ude00\ud83dy\n\/\\\"\\s"#;
        let read = Unescaped::of(from);
        assert_eq!(read.text, "äAäx😀\\ud83dy\n/\"\\s");
        let source_range = |part: &str| {
            let at = read.text.find(part).expect("part of the text");
            &from[read.source_range(at..at + part.len())]
        };
        assert_eq!(
            (source_range("Aäx"), source_range("😀"), source_range("\n/\"")),
            (r"\u0041\\\u00e4x", r"\ud83d\ude00", r#"\n\/\\\""#)
        );
    }
}
