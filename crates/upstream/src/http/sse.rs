//! An incremental parser for server-sent events.

use bytes::BytesMut;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A part of an event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SseItem {
    /// The data of an event. May be empty: such an event only carries an id.
    Event(String),
    /// The reconnection delay requested by the server, in milliseconds.
    Retry(u64),
    /// The size of an event over the limit, which was skipped.
    TooLarge(u64),
    /// The data of an event named `endpoint`, if the parser looks for such events.
    Endpoint(String),
}

pub(crate) struct SseParser {
    buffer: BytesMut,
    /// As received, so that its size counts in the same bytes as the limit.
    data: Vec<u8>,
    has_data: bool,
    id: Option<String>,
    /// Size of the event that is being skipped.
    skipped: Option<u64>,
    /// The last line ended with `\r`; a `\n` that follows belongs to it.
    after_return: bool,
    /// A byte order mark may follow.
    at_start: bool,
    limit: usize,
    /// Events named `endpoint` are reported as such.
    finds_endpoint: bool,
    /// The name of the event is `endpoint`.
    is_endpoint: bool,
    /// The id of the last complete event, for resumption.
    pub last_id: Option<String>,
}

impl SseParser {
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            data: Vec::new(),
            has_data: false,
            id: None,
            skipped: None,
            after_return: false,
            at_start: true,
            limit,
            finds_endpoint: false,
            is_endpoint: false,
            last_id: None,
        }
    }

    /// A parser for the old HTTP transport, whose first event names the endpoint for messages.
    pub fn with_endpoint(limit: usize) -> Self {
        Self { finds_endpoint: true, ..Self::new(limit) }
    }

    /// Starts a new stream; an incomplete event is discarded.
    pub fn restart(&mut self) {
        *self = Self { last_id: self.last_id.take(), ..Self::new(self.limit) };
    }

    pub fn feed(&mut self, mut bytes: &[u8], found: &mut Vec<SseItem>) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            match memchr::memchr2(b'\n', b'\r', bytes) {
                Some(at) => {
                    self.keep(&bytes[..at]);
                    self.after_return = bytes[at] == b'\r';
                    bytes = &bytes[at + 1..];
                    let line = self.buffer.split();
                    self.line(&line, found);
                }
                None => {
                    self.keep(bytes);
                    return;
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.skipped {
            // Keeps one byte, to tell a non-empty line from an empty one.
            Some(skipped) => {
                *skipped += bytes.len() as u64;
                if self.buffer.is_empty() && !bytes.is_empty() {
                    self.buffer.extend_from_slice(b"x");
                }
            }
            None if self.data.len() + self.buffer.len() + bytes.len() > self.limit => {
                self.skipped = Some((self.data.len() + self.buffer.len() + bytes.len()) as u64);
                self.data = Vec::new();
                self.buffer = BytesMut::from(&b"x"[..]);
            }
            None => self.buffer.extend_from_slice(bytes),
        }
    }

    fn line(&mut self, mut line: &[u8], found: &mut Vec<SseItem>) {
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_of_event(found);
        }
        if self.skipped.is_some() {
            return;
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"id" if !value.contains(&0) => self.id = Some(String::from_utf8_lossy(value).into_owned()),
            b"retry" => found.extend(number(value).map(SseItem::Retry)),
            b"event" if self.finds_endpoint => self.is_endpoint = value == b"endpoint",
            // Streamable HTTP ignores the event name. A comment has an empty field name.
            _ => {}
        }
    }

    fn end_of_event(&mut self, found: &mut Vec<SseItem>) {
        if let Some(id) = self.id.take() {
            self.last_id = Some(id);
        }
        if let Some(bytes) = self.skipped.take() {
            found.push(SseItem::TooLarge(bytes));
        } else if std::mem::take(&mut self.has_data) {
            let data = text(std::mem::take(&mut self.data));
            found.push(if self.is_endpoint { SseItem::Endpoint(data) } else { SseItem::Event(data) });
        }
        (self.has_data, self.is_endpoint) = (false, false);
    }
}

/// Bytes that are not UTF-8 are replaced.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A number without a sign, unlike what `parse` accepts.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[SseItem], last_id: Option<&str>) {
        for step in [1, 2, 5, text.len()] {
            let (mut parser, mut found) = (SseParser::new(50), Vec::new());
            text.as_bytes().chunks(step).for_each(|chunk| parser.feed(chunk, &mut found));
            assert_eq!(found, expected, "{text:?} by {step}");
            assert_eq!(parser.last_id.as_deref(), last_id);
        }
    }

    fn event(data: &str) -> SseItem {
        SseItem::Event(data.into())
    }

    #[test]
    fn all_line_endings_are_accepted() {
        check("data: a\n\ndata:b\r\n\r\ndata: c\r\r", &[event("a"), event("b"), event("c")], None);
        check("event: message\ndata: {\ndata: }\n\n: ping\n\ndata: torn", &[event("{\n}")], None);
    }

    #[test]
    fn ids_and_retry_are_parsed() {
        check("id: 5\ndata: \nretry: 100\n\n", &[SseItem::Retry(100), event("")], Some("5"));
        check("id: 5\ndata: a\n\nid: 6\ndata: torn", &[event("a")], Some("5"));
    }

    #[test]
    fn the_endpoint_is_told_from_messages_where_it_is_expected() {
        let text = "event: endpoint\ndata: /messages?id=1\n\nevent: message\ndata: a\n\ndata: b\n\n";
        check(text, &[event("/messages?id=1"), event("a"), event("b")], None);
        let (mut parser, mut found) = (SseParser::with_endpoint(50), Vec::new());
        parser.feed(text.as_bytes(), &mut found);
        assert_eq!(found, [SseItem::Endpoint("/messages?id=1".into()), event("a"), event("b")]);
    }

    #[test]
    fn a_byte_order_mark_is_skipped_only_at_the_start_of_the_stream() {
        check("\u{feff}data: a\n\n\u{feff}data: b\n\ndata: c\n\n", &[event("a"), event("c")], None);
    }

    #[test]
    fn a_reconnection_delay_has_only_digits() {
        check("retry: +5\nretry: 5x\nretry:\nretry: 007\n\n", &[SseItem::Retry(7)], None);
    }

    #[test]
    fn an_event_within_the_limit_that_is_not_utf_8_does_not_hide_the_next_one() {
        let stream = [b"data: ", &[0xff; 40][..], b"\n\ndata: b\n\n"].concat();
        for step in [1, 7, stream.len()] {
            let (mut parser, mut found) = (SseParser::new(50), Vec::new());
            stream.chunks(step).for_each(|chunk| parser.feed(chunk, &mut found));
            assert_eq!(found, [event(&"\u{fffd}".repeat(40)), event("b")], "by {step}");
        }
    }

    #[test]
    fn an_event_over_the_limit_is_skipped() {
        let text = format!("id: 1\ndata: {}\ndata: x\n\ndata: b\n\n", "y".repeat(100));
        let (mut parser, mut found) = (SseParser::new(50), Vec::new());
        parser.feed(text.as_bytes(), &mut found);
        assert!(matches!(found[..], [SseItem::TooLarge(100..), SseItem::Event(_)]), "{found:?}");
    }
}
