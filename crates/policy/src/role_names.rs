//! Roles are compared byte by byte. Two that only look alike are told apart here, before somebody confuses them.

use unicode_normalization::UnicodeNormalization;

/// Why a text can't be a role.
pub fn refused(role: &str) -> Option<&'static str> {
    const LONGEST: usize = 64;
    match role.chars().count() {
        0 => Some("it is empty"),
        1..=LONGEST if role.chars().any(char::is_control) => Some("it has control characters"),
        1..=LONGEST if role.chars().any(is_invisible) => Some("it has characters that can't be seen"),
        1..=LONGEST if role.trim() != role => Some("it begins or ends with a space"),
        1..=LONGEST => None,
        _ => Some("it is too long"),
    }
}

/// What two roles have in common that a reader would take for one.
pub fn looks(role: &str) -> String {
    role.nfkc().flat_map(char::to_lowercase).nfkc().collect()
}

/// Joiners, marks of direction and the like.
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
    fn look_alikes_look_alike() {
        for (one, other) in [("reader", "Reader"), ("reader", "ｒｅａｄｅｒ"), ("fi", "ﬁ"), ("é", "e\u{301}")]
        {
            assert_eq!(looks(one), looks(other), "{one} {other}");
        }
        assert_ne!(looks("reader"), looks("writer"));
    }

    #[test]
    fn what_can_not_be_seen_is_refused() {
        for role in ["", "a\u{200b}", "a\u{202e}b", "a\n", " a", "\u{feff}a"] {
            assert!(refused(role).is_some(), "{role:?}");
        }
        for role in ["reader", "prüfer", "読者", "a b", "a.b-c_d"] {
            assert_eq!(refused(role), None, "{role}");
        }
    }
}
