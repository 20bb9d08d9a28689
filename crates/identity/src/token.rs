//! The form of a credential of our own: `tb_KEY_SECRET`. The key is public and names a record; the secret is 256 random
//! bits, of which only the hash is kept. A slow hash would add nothing: nobody guesses 256 bits, and a slow hash would let
//! strangers keep the broker busy.

use ring::digest::{SHA256, digest};
use std::fmt;

const PREFIX: &str = "tb_";
const KEY_CHARS: usize = 10;
const SECRET_CHARS: usize = 64;
const TOKEN_CHARS: usize = PREFIX.len() + KEY_CHARS + 1 + SECRET_CHARS;
/// Without those that are taken for one another. 32 of them, so that five random bits choose one.
const KEY_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

pub(crate) type SecretHash = [u8; 32];

/// A whole credential, as it is shown once to whoever asked for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// What to keep of a new token.
pub(crate) struct Minted {
    pub token: Token,
    pub key: String,
    pub hash: SecretHash,
}

impl Token {
    /// The secret itself: for a file of its owner or a terminal, never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn mint() -> Result<Minted, getrandom::Error> {
        let (mut key, mut secret) = ([0u8; KEY_CHARS], [0u8; SECRET_CHARS / 2]);
        getrandom::fill(&mut key)?;
        getrandom::fill(&mut secret)?;
        let key: String = key.iter().map(|byte| char::from(KEY_ALPHABET[usize::from(byte % 32)])).collect();
        let secret = hex(&secret);
        let hash = hash(&secret);
        Ok(Minted { token: Self(format!("{PREFIX}{key}_{secret}")), key, hash })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether this means to be a token of ours, whole or not.
pub(crate) fn is_ours(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// Key and secret. Whatever has another length is refused before anybody looks at it.
pub(crate) fn parts(token: &str) -> Option<(&str, &str)> {
    if token.len() != TOKEN_CHARS {
        return None;
    }
    let (key, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    (key.len() == KEY_CHARS).then_some((key, secret))
}

pub(crate) fn hash(secret: &str) -> SecretHash {
    digest(&SHA256, secret.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<SecretHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0u8; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_has_the_parts_that_were_kept_of_it() {
        let minted = Token::mint().expect("randomness");
        let (key, secret) = parts(minted.token.expose()).expect("the form of a token");
        assert_eq!(key, minted.key);
        assert_eq!(hash(secret), minted.hash);
        assert_eq!(from_hex(&hex(&minted.hash)), Some(minted.hash));
        assert_eq!(format!("{:?}", minted.token), "Token(…)");
    }

    #[test]
    fn what_has_not_the_form_of_a_token_has_no_parts() {
        let whole = Token::mint().expect("randomness").token;
        let whole = whole.expose();
        let (spaced, huge) = (format!(" {}", &whole[1..]), whole.repeat(100_000));
        for bad in ["", "tb_", "tb__", &whole[..whole.len() - 1], &format!("{whole} "), &spaced, &huge] {
            assert_eq!(parts(bad), None, "{}", &bad[..bad.len().min(90)]);
        }
        // The right length with a letter of several bytes where a byte is looked for.
        assert_eq!(parts(&format!("tb_aaaaaaaaaé{}", "0".repeat(64))), None);
    }
}
