//! The reader of event streams: the result does not depend on how the stream is cut into parts, and equals that of a
//! simple reading of the specification.

use crate::input::Input;
use toolbus_upstream::fuzzing::{SseItem, sse_items};

pub fn sse(data: &[u8]) {
    let mut input = Input(data);
    let limit = 16 + usize::from(input.byte());
    let step = 1 + usize::from(input.byte() % 16);
    let stream = input.0;
    let (whole, last_id) = sse_items(std::iter::once(stream), limit);
    assert_eq!(sse_items(stream.chunks(step), limit), (whole.clone(), last_id.clone()), "in parts of {step}");
    let (expected, expected_id) = by_specification(stream);
    let events = |items: &[SseItem]| items.iter().filter(|item| !matches!(item, SseItem::Retry(_))).count();
    if stream.len() <= limit {
        assert_eq!((&whole, last_id), (&expected, expected_id));
    } else {
        // An event over the limit is skipped with all of its fields.
        assert!(events(&whole) >= events(&expected), "{whole:?} lacks an event of {expected:?}");
        let mut rest = expected.iter();
        for item in whole.iter().filter(|item| matches!(item, SseItem::Event(_))) {
            assert!(rest.any(|expected| expected == item), "{item:?} is not in the stream");
        }
    }
    for item in &whole {
        // A byte that is not UTF-8 becomes a character of three bytes.
        assert!(!matches!(item, SseItem::Event(data) if data.len() > 3 * limit));
    }
}

/// Events and the last id, as in the HTML standard. An event with empty data counts, too.
fn by_specification(stream: &[u8]) -> (Vec<SseItem>, Option<String>) {
    let text = String::from_utf8_lossy(stream).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let (mut items, mut data, mut id, mut last_id) = (Vec::new(), Vec::new(), None, None);
    let Some((lines, _incomplete)) = text.rsplit_once('\n') else { return (items, None) };
    for line in lines.split('\n') {
        if line.is_empty() {
            last_id = id.take().or(last_id);
            if !data.is_empty() {
                items.push(SseItem::Event(data.join("\n")));
                data.clear();
            }
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        match field {
            "data" => data.push(value.to_owned()),
            "id" if !value.contains('\0') => id = Some(value.to_owned()),
            "retry" if is_number => items.extend(value.parse().ok().map(SseItem::Retry)),
            _ => {}
        }
    }
    (items, last_id)
}
