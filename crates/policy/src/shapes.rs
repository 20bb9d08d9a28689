//! What else an address or a path may mean: `/pub/../etc` is what its server makes of it.

use std::borrow::Cow;

/// With the ports that go without saying.
const WEB_PORTS: [(&str, &str); 5] = [("http", "80"), ("https", "443"), ("ws", "80"), ("wss", "443"), ("ftp", "21")];

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
    let text = seen_by_readers(&decoded(uri));
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
    let text = seen_by_readers(&decoded(path));
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

/// What readers of addresses make of a text before they look at its parts: one kind of slash, nothing invisible at its
/// ends, and no tabs or line ends anywhere, so that `.<tab>.` is two dots.
fn seen_by_readers(text: &str) -> String {
    let trimmed = text.trim_matches(|c: char| c <= ' ');
    trimmed.chars().filter(|c| !matches!(c, '\t' | '\r' | '\n')).map(|c| if c == '\\' { '/' } else { c }).collect()
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
            let authority = if here { "".into() } else { plain_authority(name, authority) };
            segments.extend(["".into(), "".into(), authority]);
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

/// On the web a host is the same with its usual port, with a user before it, and with a dot behind it.
fn plain_authority<'a>(scheme: &str, authority: Cow<'a, str>) -> Cow<'a, str> {
    let Some((_, port)) = WEB_PORTS.iter().find(|(web, _)| *web == scheme) else { return authority };
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (name, given) = match host.rsplit_once(':') {
        Some((name, given)) if given.bytes().all(|byte| byte.is_ascii_digit()) => (name, given.trim_start_matches('0')),
        _ => (host, ""),
    };
    let name = name.trim_end_matches('.');
    let plain = if given.is_empty() || given == *port { name.to_owned() } else { format!("{name}:{given}") };
    if plain == *authority { authority } else { plain.into() }
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

/// See [`seen_by_readers`].
fn has_invisible_parts(text: &str) -> bool {
    text.starts_with(|c: char| c <= ' ')
        || text.ends_with(|c: char| c <= ' ')
        || memchr::memchr3(b'\t', b'\r', b'\n', text.as_bytes()).is_some()
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
    if memchr::memchr2(b'%', b'\\', text.as_bytes()).is_some() || has_invisible_parts(text) {
        return false;
    }
    let (scheme, rest) = split_scheme(text);
    if scheme.is_some_and(|scheme| scheme.bytes().any(|byte| byte.is_ascii_uppercase())) {
        return false;
    }
    let path = match (scheme, rest.strip_prefix("//")) {
        (Some(_), Some(rest)) => {
            let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
            let is_odd = |byte: u8| byte.is_ascii_uppercase() || matches!(byte, b'@' | b':');
            if authority.bytes().any(is_odd) || authority.ends_with('.') {
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
        for odd in
            ["file:///pub/.\t./etc", "file:///pub/..\n/etc", " file:///etc", "fi\rle:///etc", "\u{1}file:///etc\n"]
        {
            check_address(odd, Some("file:///etc"));
        }
        for odd in ["http://a.b:80/x", "http://a.b:0080/x", "http://a.b:/x", "http://u@a.b/x", "http://a.b./x"] {
            check_address(odd, Some("http://a.b/x"));
        }
        check_address("http://a.b:8080/x", None);
        check_address("db://user@host:1/x", None);
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
            ("/tmp/.\t./a", Reading::Detour),
            ("https://a.b/pub/.\n./c", Reading::Detour),
            ("/tmp/a\n", two("/tmp/a")),
            ("SELECT 1\nFROM x", two("SELECT 1FROM x")),
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
