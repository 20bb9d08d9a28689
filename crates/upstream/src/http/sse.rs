//! An incremental parser for server-sent events.

use bytes::BytesMut;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SseItem {
    /// The data of an event. May be empty: such an event only carries an id.
    Event(String),
    /// The reconnection delay requested by the server, in milliseconds.
    Retry(u64),
    /// The size of an event over the limit, which was skipped.
    TooLarge(u64),
}

pub(super) struct SseParser {
    buffer: BytesMut,
    data: String,
    has_data: bool,
    id: Option<String>,
    /// Size of the event that is being skipped.
    skipped: Option<u64>,
    /// The last line ended with `\r`; a `\n` that follows belongs to it.
    after_return: bool,
    limit: usize,
    /// The id of the last complete event, for resumption.
    pub last_id: Option<String>,
}

impl SseParser {
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            data: String::new(),
            has_data: false,
            id: None,
            skipped: None,
            after_return: false,
            limit,
            last_id: None,
        }
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
                self.data = String::new();
                self.buffer = BytesMut::from(&b"x"[..]);
            }
            None => self.buffer.extend_from_slice(bytes),
        }
    }

    fn line(&mut self, line: &[u8], found: &mut Vec<SseItem>) {
        if line.is_empty() {
            return self.end_of_event(found);
        }
        if self.skipped.is_some() {
            return;
        }
        let line = String::from_utf8_lossy(line);
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" => found.extend(value.parse().ok().map(SseItem::Retry)),
            // MCP ignores the event name. A comment has an empty field name.
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
            found.push(SseItem::Event(std::mem::take(&mut self.data)));
        }
        self.has_data = false;
    }
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
    fn an_event_over_the_limit_is_skipped() {
        let text = format!("id: 1\ndata: {}\ndata: x\n\ndata: b\n\n", "y".repeat(100));
        let (mut parser, mut found) = (SseParser::new(50), Vec::new());
        parser.feed(text.as_bytes(), &mut found);
        assert!(matches!(found[..], [SseItem::TooLarge(100..), SseItem::Event(_)]), "{found:?}");
    }
}
