//! Role names are compared byte by byte. This module rejects invisible characters and detects confusable names.

use toolbus_base::fold_case;
use unicode_normalization::UnicodeNormalization;

/// Why a text can't be the name of a role.
pub fn rejection(role: &str) -> Option<&'static str> {
    const MAX_CHARS: usize = 64;
    match role.chars().count() {
        0 => Some("it is empty"),
        1..=MAX_CHARS if role.chars().any(char::is_control) => Some("it has control characters"),
        1..=MAX_CHARS if role.chars().any(is_invisible) => Some("it has invisible characters"),
        1..=MAX_CHARS if role.trim() != role => Some("it begins or ends with a space"),
        1..=MAX_CHARS => None,
        _ => Some("it is too long"),
    }
}

/// A key that is equal for names that a reader would confuse.
pub fn confusable_key(name: &str) -> String {
    fold_case(&name.nfkc().collect::<String>()).nfkc().filter(|c| !is_invisible(*c)).collect()
}

/// Joiners, direction marks and similar.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confusable_names_have_the_same_key() {
        for (one, other) in
            [("reader", "Reader"), ("reader", "ｒｅａｄｅｒ"), ("fi", "ﬁ"), ("é", "e\u{301}"), ("ab", "a\u{200b}b")]
        {
            assert_eq!(confusable_key(one), confusable_key(other), "{one} {other}");
        }
        assert_ne!(confusable_key("reader"), confusable_key("writer"));
    }

    #[test]
    fn names_that_could_be_misread_are_rejected() {
        for (role, reason) in [
            ("", "it is empty"),
            ("a\u{200b}", "it has invisible characters"),
            ("a\u{202e}b", "it has invisible characters"),
            ("\u{feff}a", "it has invisible characters"),
            ("a\nb", "it has control characters"),
            (" a", "it begins or ends with a space"),
            (&"ü".repeat(65), "it is too long"),
        ] {
            assert_eq!(rejection(role), Some(reason), "{role:?}");
        }
        for role in ["reader", "prüfer", "読者", "a b", "a.b-c_d", &"ü".repeat(64)] {
            assert_eq!(rejection(role), None, "{role}");
        }
    }
}
