//! Hexadecimal text.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Encodes bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = Vec::with_capacity(2 * bytes.len());
    digits.extend(bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]));
    String::from_utf8(digits).expect("digits are ASCII")
}

/// Decodes hexadecimal text. Returns `None` if it has other characters or not exactly two digits per byte of `N`.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    from_hex_of_any_length(text)?.try_into().ok()
}

/// Decodes hexadecimal text. Returns `None` if it has other characters or an odd number of digits.
pub fn from_hex_of_any_length(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_and_only_their_exact_text_is_decoded() {
        assert_eq!(hex(&[0x00, 0x0f, 0xa5, 0xff]), "000fa5ff");
        assert_eq!(from_hex("000fA5ff"), Some([0x00, 0x0f, 0xa5, 0xff]));
        for wrong in ["", "000fa5f", "000fa5ff0", "000fa5fg", "000f+5ff", "000fä5ff"] {
            assert_eq!(from_hex::<4>(wrong), None, "{wrong}");
        }
        assert_eq!(from_hex_of_any_length("000fA5"), Some(vec![0x00, 0x0f, 0xa5]));
        assert_eq!(from_hex_of_any_length(""), Some(Vec::new()));
        for wrong in ["0", "000", "0g", "+5", "fä5"] {
            assert_eq!(from_hex_of_any_length(wrong), None, "{wrong}");
        }
    }
}
