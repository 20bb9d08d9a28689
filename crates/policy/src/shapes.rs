//! What else an address or a path may mean: `/pub/../etc` is what its server makes of it.

use std::borrow::Cow;

/// Percent signs may be encoded themselves; nobody decodes more often than this.
const MOST_DECODINGS: usize = 3;

/// A text in its plainest form: decoded, with one kind of slash, without `.` and doubled slashes.
struct Plain<'a> {
    scheme: Option<Cow<'a, str>>,
    segments: Vec<Cow<'a, str>>,
}

/// What else an address may mean.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OtherAddresses {
    /// As likely as the address itself.
    pub other: Option<String>,
    /// Without its query: to some servers the same. An `allow` may be about the query, so this counts for what is
    /// stricter only.
    pub without_query: Option<String>,
}

pub fn other_addresses(uri: &str) -> OtherAddresses {
    let other = other_address(uri);
    let plainest = other.as_deref().unwrap_or(uri);
    let without_query = plainest.split_once('?').map(|(address, _)| address.to_owned());
    OtherAddresses { without_query, other }
}

/// Another address that is meant by this one, if there is any.
fn other_address(uri: &str) -> Option<String> {
    if is_plain(uri) && !uri.contains('#') && !has_odd_scheme(uri) {
        return None;
    }
    let text = decoded(uri).replace('\\', "/");
    // What stands behind these is no part of the path. Files have no query.
    let (scheme, _) = split_scheme(&text);
    let is_file = scheme.is_some_and(is_file);
    let text = text.split('#').next().unwrap_or_default();
    let (text, query) = match text.split_once('?') {
        Some((text, _)) if is_file => (text, None),
        Some((text, query)) => (text, Some(query)),
        None => (text, None),
    };
    let plain = Plain::of(text);
    let floor = if plain.scheme.is_some() { 3 } else { 0 };
    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    for segment in plain.segments {
        if segment == ".." {
            // Nothing leads above the root.
            if parts.len() > floor {
                parts.pop();
            }
        } else {
            parts.push(segment);
        }
    }
    // A file is one of this machine, whatever host is named.
    if is_file && let Some(authority) = parts.get_mut(2) {
        *authority = "".into();
    }
    let mut other = parts.join("/");
    if let Some(scheme) = plain.scheme {
        other = format!("{scheme}:{other}");
    }
    if let Some(query) = query {
        other = format!("{other}?{query}");
    }
    (other != uri).then_some(other)
}

fn is_file(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("file")
}

/// How a text that is tested as a path can be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    /// As it stands.
    One,
    /// As it stands, or like this.
    Two(String),
    /// It has `..` in it: where it leads nobody can tell from the text.
    Detour,
}

pub fn reading_of(path: &str) -> Reading {
    if is_plain(path) {
        return Reading::One;
    }
    let text = decoded(path).replace('\\', "/");
    if text.split('/').any(|segment| segment == "..") {
        return Reading::Detour;
    }
    let plain = Plain::of(&text);
    let rest = plain.segments.join("/");
    let other = match plain.scheme {
        Some(scheme) => format!("{scheme}:{rest}"),
        None => rest,
    };
    if other == path { Reading::One } else { Reading::Two(other) }
}

impl<'a> Plain<'a> {
    fn of(text: &'a str) -> Self {
        let (scheme, rest) = split_scheme(text);
        let scheme = scheme.map(lower);
        let mut segments: Vec<Cow<'a, str>> = Vec::new();
        let mut rest = rest;
        if let Some(name) = &scheme {
            // `file:/x` and `file://localhost/x` are `file:///x`.
            let (authority, path) = match rest.strip_prefix("//") {
                Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
                None => ("", rest),
            };
            let authority = lower(authority);
            let here = &**name == "file" && authority == "localhost";
            segments.extend(["".into(), "".into(), if here { "".into() } else { authority }]);
            rest = path.strip_prefix('/').unwrap_or(path);
        } else if let Some(path) = rest.strip_prefix('/') {
            segments.push("".into());
            rest = path;
        }
        let last = rest.rsplit('/').next() == Some("");
        segments.extend(rest.split('/').filter(|part| !matches!(*part, "" | ".")).map(Cow::Borrowed));
        if last && !rest.is_empty() {
            segments.push("".into());
        }
        Self { scheme, segments }
    }
}

/// Only what has a path behind it is an address; `urn:x` and `a: b` are left alone.
fn split_scheme(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((scheme, rest))
            if rest.starts_with('/')
                && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
        {
            (Some(scheme), rest)
        }
        _ => (None, text),
    }
}

fn lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) { text.to_ascii_lowercase().into() } else { text.into() }
}

/// Capitals in scheme or host, `file:/x`, `file://host/x`, `file:///x?y`.
fn has_odd_scheme(uri: &str) -> bool {
    let (Some(scheme), rest) = split_scheme(uri) else { return false };
    let authority = rest.strip_prefix("//").map(|rest| &rest[..rest.find('/').unwrap_or(rest.len())]);
    scheme.bytes().any(|byte| byte.is_ascii_uppercase())
        || authority.is_none_or(|authority| authority.bytes().any(|byte| byte.is_ascii_uppercase()))
        || (scheme == "file" && (authority != Some("") || rest.contains('?')))
}

/// Whether nothing in it could be read in another way. The usual case, and quickly seen.
fn is_plain(text: &str) -> bool {
    if memchr::memchr2(b'%', b'\\', text.as_bytes()).is_some() {
        return false;
    }
    let (scheme, rest) = split_scheme(text);
    if scheme.is_some_and(|scheme| scheme.bytes().any(|byte| byte.is_ascii_uppercase())) {
        return false;
    }
    let path = match (scheme, rest.strip_prefix("//")) {
        (Some(_), Some(rest)) => {
            let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
            if authority.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return false;
            }
            &rest[authority.len()..]
        }
        (Some(_), None) => return false,
        _ => rest,
    };
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return false;
        }
    }
    true
}

/// With every `%41` replaced by what it stands for, also where the percent sign was written so.
fn decoded(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MOST_DECODINGS {
        let Some(once) = decoded_once(&text) else { break };
        text = Cow::Owned(once);
    }
    text
}

fn decoded_once(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut at = memchr::memchr(b'%', bytes)?;
    let mut out = bytes[..at].to_vec();
    let digit = |at: usize| bytes.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let mut changed = false;
    while let Some(byte) = bytes.get(at) {
        match (*byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                changed = true;
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    changed.then(|| String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_address(uri: &str, other: Option<&str>) {
        assert_eq!(other_address(uri).as_deref(), other, "{uri}");
    }

    #[test]
    fn addresses_have_one_plain_form() {
        check_address("file:///pub/a", None);
        check_address("https://example.com/a?b=c&d", None);
        check_address("urn:isbn:1", None);
        check_address("test://one", None);
        check_address("file:///pub/../etc", Some("file:///etc"));
        check_address("file:///pub/%2e%2E/etc", Some("file:///etc"));
        check_address("file:///pub/%252e%252e/etc", Some("file:///etc"));
        check_address("file:///pub/..%2f..%2Fetc", Some("file:///etc"));
        check_address("file:///pub\\..\\etc", Some("file:///etc"));
        check_address("file:///../../etc", Some("file:///etc"));
        check_address("file:///pub//./etc/", Some("file:///pub/etc/"));
        check_address("FILE:///etc/passwd", Some("file:///etc/passwd"));
        check_address("file:/etc/passwd", Some("file:///etc/passwd"));
        check_address("file://localhost/etc", Some("file:///etc"));
        check_address("file:///%65tc", Some("file:///etc"));
        check_address("file:///etc/passwd#x", Some("file:///etc/passwd"));
        check_address("https://Example.COM/a", Some("https://example.com/a"));
        check_address("https://example.com/../a", Some("https://example.com/a"));
    }

    #[test]
    fn paths_are_read_as_they_stand_or_in_two_ways_or_lead_astray() {
        let two = |text: &str| Reading::Two(text.to_owned());
        for (path, reading) in [
            ("/tmp/a", Reading::One),
            ("/tmp/", Reading::One),
            ("a.b...c", Reading::One),
            ("SELECT 100% of it", Reading::One),
            ("https://a.b/c", Reading::One),
            ("/tmp/..", Reading::Detour),
            ("..", Reading::Detour),
            ("/tmp/%2E./etc", Reading::Detour),
            ("/tmp/%252e%252e/etc", Reading::Detour),
            ("C:\\x\\..\\y", Reading::Detour),
            ("//etc/passwd", two("/etc/passwd")),
            ("/./etc", two("/etc")),
            ("/%65tc", two("/etc")),
            ("./etc", two("etc")),
            ("HTTPS://a.b/c", two("https://a.b/c")),
        ] {
            assert_eq!(reading_of(path), reading, "{path}");
        }
    }
}
