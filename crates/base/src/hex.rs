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
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let digit = |at: usize| char::from(digits[at]).to_digit(16);
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(digit(2 * at)? << 4 | digit(2 * at + 1)?).ok()?;
    }
    Some(bytes)
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
    }
}
