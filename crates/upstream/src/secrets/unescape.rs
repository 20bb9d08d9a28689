//! Text with its `\u0041` read, and where each byte of it came from. For looking only: what such an escape stands for may
//! be part of a grammar, so nothing is written in this form.

use std::ops::Range;

pub(super) struct Unescaped {
    pub text: String,
    /// For each byte of the text, where what it was read from begins and ends.
    origins: Vec<(usize, usize)>,
}

impl Unescaped {
    /// However many backslashes there are: in JSON within strings of JSON they are doubled. Those before a slash, which
    /// needs none, are read too.
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

    /// Where that part of the text stands in what it was read from.
    pub fn place(&self, part: Range<usize>) -> Range<usize> {
        let start = self.origins.get(part.start).map_or(0, |origin| origin.0);
        let end = part.end.checked_sub(1).and_then(|last| self.origins.get(last)).map_or(start, |origin| origin.1);
        start..end
    }
}

/// The character that an escape at that place stands for, and where the escape ends.
fn escape(from: &str, at: usize) -> Option<(char, usize)> {
    let rest = &from[at..];
    let backslashes = rest.bytes().take_while(|byte| *byte == b'\\').count();
    if backslashes > 0 && rest[backslashes..].starts_with('/') {
        return Some(('/', at + backslashes + 1));
    }
    let (unit, end) = unit(from, at)?;
    let second = || unit_pair(unit, self::unit(from, end));
    match char::from_u32(u32::from(unit)) {
        Some(c) => Some((c, end)),
        None => second(),
    }
}

fn unit_pair(first: u16, second: Option<(u16, usize)>) -> Option<(char, usize)> {
    let (second, end) = second?;
    let c = char::decode_utf16([first, second]).next()?.ok()?;
    Some((c, end))
}

/// One `\uXXXX`, and where it ends.
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
    fn escapes_are_read_at_every_depth_and_lead_back_to_where_they_stood() {
        let from = r"ä\u0041\\\u00e4x\ud83d\ude00\ud83dy\n\/";
        let read = Unescaped::of(from);
        assert_eq!(read.text, r"äAäx😀\ud83dy\n/");
        let place = |part: &str| {
            let at = read.text.find(part).expect("it is there");
            &from[read.place(at..at + part.len())]
        };
        assert_eq!((place("Aäx"), place("😀"), place("n/")), (r"\u0041\\\u00e4x", r"\ud83d\ude00", r"n\/"));
    }
}
