//! The format of our own tokens: `tb_KEY_SECRET`. The key is public and identifies a record; the secret is 256 random
//! bits, and only its hash is stored. A slow hash is unnecessary: 256 bits can't be guessed, and it would let
//! unauthenticated peers keep the broker busy.

use ring::digest::{SHA256, digest};
use std::fmt;
use toolbus_base::hex;

const PREFIX: &str = "tb_";
const KEY_CHARS: usize = 10;
const SECRET_CHARS: usize = 64;
const TOKEN_CHARS: usize = PREFIX.len() + KEY_CHARS + 1 + SECRET_CHARS;
/// Without easily confused characters. 32 entries, so that five random bits select one without bias.
const KEY_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

pub(crate) type SecretHash = [u8; 32];

/// A complete token with its secret, shown once when it is issued.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A new token, with the key and the hash to store.
pub(crate) struct Minted {
    pub token: Token,
    pub key: String,
    pub hash: SecretHash,
}

impl Token {
    /// The token as text, including the secret: for the owner's file or terminal, never for a log.
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

/// Whether the text has the prefix of our own tokens, complete or not.
pub(crate) fn has_own_prefix(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// Splits a token into key and secret. A text of another length is rejected without parsing.
pub(crate) fn parts(token: &str) -> Option<(&str, &str)> {
    if token.len() != TOKEN_CHARS {
        return None;
    }
    let (key, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    (key.len() == KEY_CHARS).then_some((key, secret))
}

pub(crate) fn hash(secret: &str) -> SecretHash {
    digest(&SHA256, secret.as_bytes()).as_ref().try_into().expect("a SHA-256 digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_base::from_hex;

    #[test]
    fn a_new_token_matches_its_stored_key_and_hash() {
        let minted = Token::mint().expect("random bytes");
        let (key, secret) = parts(minted.token.expose()).expect("a well-formed token");
        assert_eq!(key, minted.key);
        assert_eq!(hash(secret), minted.hash);
        assert_eq!(from_hex(&hex(&minted.hash)), Some(minted.hash));
        assert_eq!(format!("{:?}", minted.token), "Token(…)");
    }

    #[test]
    fn malformed_tokens_have_no_parts() {
        let whole = Token::mint().expect("random bytes").token;
        let whole = whole.expose();
        let (spaced, huge) = (format!(" {}", &whole[1..]), whole.repeat(100_000));
        for bad in ["", "tb_", "tb__", &whole[..whole.len() - 1], &format!("{whole} "), &spaced, &huge] {
            assert_eq!(parts(bad), None, "{}", &bad[..bad.len().min(90)]);
        }
        // The right length in bytes, with a multi-byte character at the position of the separator.
        assert_eq!(parts(&format!("tb_aaaaaaaaaé{}", "0".repeat(64))), None);
    }
}
