//! Determines which of a server's values are secret: all fetched values, all headers but a few, and variables whose
//! name suggests it.

use super::SecretSettings;
use crate::config::TransportConfig;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const SECRET_WORDS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "KEY",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "BEARER",
    "PRIVATE",
    "DSN",
    "PAT",
    "PWD",
    "CONNECTION_STRING",
    "DATABASE_URL",
];
/// Too frequent as parts of other words; they count only as whole words.
const WHOLE_WORDS: &[&str] = &["PAT", "PWD", "DSN", "KEY", "AUTH"];

/// Headers that are not secret, and whose values are common in responses.
const PUBLIC_HEADERS: &[&str] = &[
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-type",
    "host",
    "origin",
    "referer",
    "user-agent",
];

/// Minimum length of a line of a multi-line secret, such as a private key, to be redacted on its own.
const MIN_LINE_BYTES: usize = 16;

pub(crate) fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase().replace('-', "_");
    let is_word = |word: &str| name.split('_').any(|part| part == word || part.strip_suffix('S') == Some(word));
    SECRET_WORDS.iter().any(|word| match WHOLE_WORDS.contains(word) {
        true => is_word(word) || (*word == "KEY" && name.ends_with("KEY")),
        false => name.contains(word),
    })
}

/// All texts that must be redacted.
pub(super) fn secrets_of(transport: &TransportConfig, settings: &SecretSettings, fetched: &[String]) -> Vec<String> {
    let mut secrets: Vec<String> = fetched.iter().chain(&settings.secret_variables).cloned().collect();
    let named = |name: &str| looks_secret(name) || settings.names.iter().any(|secret| secret == name);
    match transport {
        TransportConfig::Stdio { env, .. } => {
            secrets.extend(env.iter().filter(|(name, _)| named(name)).map(|(_, value)| value.clone()));
        }
        TransportConfig::Http { url, headers } | TransportConfig::Sse { url, headers } => {
            let is_public = |name: &str| PUBLIC_HEADERS.iter().any(|public| name.eq_ignore_ascii_case(public));
            for (_, value) in headers.iter().filter(|(name, _)| !is_public(name)) {
                secrets.push(value.trim().to_owned());
                secrets.extend(words_of(value).map(str::to_owned));
                secrets.extend(basic_password(value));
            }
            let query = url.split_once('?').map_or("", |(_, query)| query);
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            secrets.extend(pairs.filter(|(name, _)| named(name)).map(|(_, value)| value.to_owned()));
        }
        TransportConfig::InProcess(_) => {}
    }
    let lines =
        |secret: &String| secret.lines().filter(|line| line.len() >= MIN_LINE_BYTES).map(str::to_owned).collect();
    let of_lines: Vec<Vec<String>> = secrets.iter().filter(|secret| secret.contains('\n')).map(lines).collect();
    secrets.extend(of_lines.into_iter().flatten());
    secrets
}

/// The words of a header without its scheme (`Bearer`, `Basic`), which is not secret.
fn words_of(header: &str) -> impl Iterator<Item = &str> {
    let is_scheme = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let has_more = header.split_whitespace().nth(1).is_some();
    let skipped = usize::from(has_more && header.split_whitespace().next().is_some_and(is_scheme));
    header.split_whitespace().skip(skipped)
}

fn basic_password(header: &str) -> Option<String> {
    let encoded = header.trim().strip_prefix("Basic ")?;
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_recognised_by_their_names() {
        for name in
            ["GITHUB_TOKEN", "apiKey", "API_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "my-secret", "AUTH", "GH_PAT"]
        {
            assert!(looks_secret(name), "{name}");
        }
        for name in ["PATH", "HOME", "KEYBOARD", "AUTHOR", "REGION", "LOG_LEVEL", "MONKEYS"] {
            assert!(!looks_secret(name), "{name}");
        }
    }

    #[test]
    fn the_scheme_of_a_header_is_not_secret() {
        let words = |header| words_of(header).collect::<Vec<_>>();
        assert_eq!(words("Bearer abc-123"), ["abc-123"]);
        assert_eq!(words("abcdef"), ["abcdef"]);
        assert_eq!(words("k1=a, k2=b"), ["k1=a,", "k2=b"]);
    }

    #[test]
    fn the_password_of_a_basic_header_is_secret() {
        assert_eq!(basic_password("Basic dXNlcjpwYXNzOndvcmQ="), Some("pass:word".to_owned()));
    }
}
