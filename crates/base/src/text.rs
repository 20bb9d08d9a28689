//! Text of others for a terminal: control characters could move the cursor or change colours, bidirectional controls and
//! invisible characters could reorder or hide what a person decides on.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes all characters that could control a terminal or mislead its reader, except line breaks and tabs. The escapes
/// are those of JSON, so the text of a JSON document stays the same document.
pub fn terminal_text(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let (mut before, mut rest) = (None, text.chars().peekable());
    while let Some(c) = rest.next() {
        let is_style = matches!(c, '\u{fe0e}' | '\u{fe0f}') && has_styles(before, rest.peek().copied());
        before = Some(c);
        match c {
            c if is_harmless(c) || is_style => shown.push(c),
            // In JSON it can only be white space between values.
            '\r' => shown.push(' '),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                write!(shown, "\\u{unit:04x}").expect("a string can be written");
            }),
        }
    }
    Cow::Owned(shown)
}

/// Like [`terminal_text`], on one line: line breaks and tabs become spaces, and the ends are trimmed.
pub fn terminal_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c }).collect();
    terminal_text(line.trim()).into_owned()
}

/// Folds case so that texts which differ only in case become equal, in all scripts: `ß` and `SS`, or the two forms of a
/// Greek sigma, are one letter only in capitals, and `ẞ` becomes the same only from its small letter.
pub fn fold_case(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    // Letter by letter, because `str::to_lowercase` takes the place of a sigma into account.
    let small = text.chars().flat_map(char::to_lowercase);
    small.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Escapes every character that can't be seen, line breaks included: it can hide instructions to a model.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_visible(c) { shown.push(c) } else { shown.push_str(&format!("\\u{{{:04x}}}", u32::from(c))) }
    }
    shown
}

/// Whether a character may be shown as text or as an emoji. Behind any other, the choice would be invisible, and could
/// make two names look alike or hide data.
fn has_styles(before: Option<char>, after: Option<char>) -> bool {
    const KEYCAP: char = '\u{20e3}';
    match before {
        Some('0'..='9' | '#' | '*') => after == Some(KEYCAP),
        Some('©' | '®' | '\u{203c}'..='\u{2bff}' | '〰' | '〽' | '㊗' | '㊙' | '\u{1f000}'..='\u{1faff}') => true,
        _ => false,
    }
}

/// Spaces other than the usual one occur in ordinary text.
fn is_harmless(c: char) -> bool {
    let is_ordinary =
        matches!(c, '\n' | '\t' | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}') || c == '\u{fffd}';
    is_ordinary || is_visible(c)
}

fn is_visible(c: char) -> bool {
    !c.is_control()
        && !matches!(u32::from(c),
            0xa0 | 0xad | 0x34f | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x3164 | 0xfeff | 0xffa0
            | 0x180b..=0x180f | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f
            | 0xfe00..=0xfe0f | 0xfff0..=0xfffb | 0xe000..=0xf8ff | 0xe0000..=0xe0fff | 0xf0000..=0x10ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_or_hide_text_are_escaped_as_in_json() {
        let check = |text: &str, shown: &str| assert_eq!(terminal_text(text), shown, "{text:?}");
        check("a\tb\nü 日本 👍\u{fe0f} 10\u{202f}000", "a\tb\nü 日本 👍\u{fe0f} 10\u{202f}000");
        check("1\u{fe0f}\u{20e3} ©\u{fe0f}", "1\u{fe0f}\u{20e3} ©\u{fe0f}");
        check("sleep\u{fe0f}2\u{fe0f} \u{fe00}👍\u{fe0f}\u{fe0f}", "sleep\\ufe0f2\\ufe0f \\ufe00👍\u{fe0f}\\ufe0f");
        check("\u{1b}[2J\u{7}\u{7f}\u{9b}", "\\u001b[2J\\u0007\\u007f\\u009b");
        check("a\r\nb", "a \nb");
        let hidden = "\u{200b}\u{200d}\u{200e}\u{200f}\u{61c}\u{2028}\u{2029}\u{feff}\u{ad}\u{2060}";
        for c in hidden.chars().chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            check(&c.to_string(), &format!("\\u{:04x}", u32::from(c)));
        }
        check("\u{e0041}", "\\udb40\\udc41");
    }

    #[test]
    fn texts_that_differ_only_in_case_are_folded_to_the_same() {
        let alike = [
            ("Echo", "ECHO"),
            ("straße", "STRASSE"),
            ("straße", "STRAẞE"),
            ("οδος", "ΟΔΟΣ"),
            ("k", "\u{212a}"),
            ("É", "é"),
        ];
        for (one, other) in alike {
            assert_eq!(fold_case(one), fold_case(other), "{one} {other}");
        }
        assert_ne!(fold_case("é"), fold_case("e"));
    }

    #[test]
    fn a_line_has_no_line_breaks_and_escapes_stay_readable() {
        assert_eq!(terminal_line(" a\r\nb\tc\u{85}\u{2028}d "), "a  b c\\u0085\\u2028d");
        assert_eq!(escaped("a\n\u{a0}\u{202e}é"), "a\\u{000a}\\u{00a0}\\u{202e}é");
    }
}
