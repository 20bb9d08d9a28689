//! Normalizes URIs and paths: `/pub/../etc` means whatever the server makes of it, so rules are matched against each
//! interpretation.

use std::borrow::Cow;

const FILE: &str = "file";
/// Web schemes and their default ports.
const WEB_PORTS: [(&str, &str); 5] = [("http", "80"), ("https", "443"), ("ws", "80"), ("wss", "443"), ("ftp", "21")];

/// Percent signs may be percent-encoded themselves. No known server decodes more often than this.
const MAX_DECODE_PASSES: usize = 3;

/// A normalized text: percent-decoded, with `/` as the only separator, without `.` and empty segments.
struct Normalized<'a> {
    scheme: Option<Cow<'a, str>>,
    segments: Vec<Cow<'a, str>>,
}

/// Other interpretations of a URI.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UriVariants {
    /// As likely as the URI itself.
    pub other: Option<String>,
    /// Without the query, which some servers ignore. An `allow` may depend on the query, so this one can only make the
    /// outcome stricter.
    pub without_query: Option<String>,
}

pub fn uri_variants(uri: &str) -> UriVariants {
    let other = normalized_uri(uri);
    let plainest = other.as_deref().unwrap_or(uri);
    let without_query = plainest.split_once('?').map(|(address, _)| address.to_owned());
    UriVariants { without_query, other }
}

/// The normalized URI: equal for URIs that most servers take for the same.
pub fn normal_uri(uri: &str) -> Cow<'_, str> {
    normalized_uri(uri).map_or(Cow::Borrowed(uri), Cow::Owned)
}

/// The normalized URI, if it differs from the given one.
fn normalized_uri(uri: &str) -> Option<String> {
    if is_plain(uri) && !uri.contains('#') {
        return None;
    }
    let text = url_parser_cleanup(&decoded(uri));
    // The fragment is not part of the path. `file:` URIs have no query.
    let (scheme, _) = split_scheme(&text);
    let is_file = scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(FILE));
    let text = text.split('#').next().unwrap_or_default();
    let (text, query) = match text.split_once('?') {
        Some((text, _)) if is_file => (text, None),
        Some((text, query)) => (text, Some(query)),
        None => (text, None),
    };
    let plain = Normalized::of(text);
    let floor = if plain.scheme.is_some() { 3 } else { 0 };
    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    for segment in plain.segments {
        if segment == ".." {
            // `..` doesn't lead above the root.
            if parts.len() > floor {
                parts.pop();
            }
        } else {
            parts.push(segment);
        }
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

/// The possible interpretations of a text that is tested as a path.
#[derive(Debug, PartialEq, Eq)]
pub enum PathReading {
    /// Only the text itself.
    One,
    /// The text itself or this one.
    Two(String),
    /// Contains `..`: the target can't be determined from the text.
    Traversal,
}

pub fn reading_of(path: &str) -> PathReading {
    if is_plain(path) {
        return PathReading::One;
    }
    let text = url_parser_cleanup(&decoded(path));
    if text.split('/').any(|segment| segment == "..") {
        return PathReading::Traversal;
    }
    let plain = Normalized::of(target_of(&text));
    let rest = plain.segments.join("/");
    let other = match plain.scheme {
        Some(scheme) => format!("{scheme}:{rest}"),
        None => rest,
    };
    if other == path { PathReading::One } else { PathReading::Two(other) }
}

/// A URI without its fragment, and without its query if it is a `file:` URI, which has none.
fn target_of(text: &str) -> &str {
    let (Some(scheme), _) = split_scheme(text) else { return text };
    let is_end = |c: char| c == '#' || (c == '?' && scheme.eq_ignore_ascii_case(FILE));
    text.split(is_end).next().unwrap_or_default()
}

/// Applies what URL parsers do first: `\` becomes `/`, control characters and spaces at both ends are trimmed, and tabs
/// and line breaks are removed everywhere, so that `.<tab>.` becomes `..`.
fn url_parser_cleanup(text: &str) -> String {
    let trimmed = text.trim_matches(|c: char| c <= ' ');
    trimmed.chars().filter(|c| !matches!(c, '\t' | '\r' | '\n')).map(|c| if c == '\\' { '/' } else { c }).collect()
}

impl<'a> Normalized<'a> {
    fn of(text: &'a str) -> Self {
        let (scheme, rest) = split_scheme(text);
        let scheme = scheme.map(lower);
        let mut segments: Vec<Cow<'a, str>> = Vec::new();
        let mut rest = rest;
        if let Some(name) = &scheme {
            // `file:/x` is `file:///x`, and a `file:` URI refers to this machine, whatever its authority is.
            let (authority, path) = match rest.strip_prefix("//") {
                Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
                None => ("", rest),
            };
            let authority = if name == FILE { "".into() } else { normalized_authority(name, lower(authority)) };
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

/// For web schemes, removes the default port, the user info and a trailing dot of the host.
fn normalized_authority<'a>(scheme: &str, authority: Cow<'a, str>) -> Cow<'a, str> {
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

/// Only a scheme that is followed by a path counts; `urn:x` and `a: b` are left alone.
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

/// Whether [`url_parser_cleanup`] would remove something.
fn needs_cleanup(text: &str) -> bool {
    text.starts_with(|c: char| c <= ' ')
        || text.ends_with(|c: char| c <= ' ')
        || memchr::memchr3(b'\t', b'\r', b'\n', text.as_bytes()).is_some()
}

fn lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) { text.to_ascii_lowercase().into() } else { text.into() }
}

/// Fast path for the usual case: true if the text has no other interpretation.
fn is_plain(text: &str) -> bool {
    if memchr::memchr2(b'%', b'\\', text.as_bytes()).is_some() || needs_cleanup(text) {
        return false;
    }
    let (scheme, rest) = split_scheme(text);
    if scheme.is_some_and(|scheme| scheme.bytes().any(|byte| byte.is_ascii_uppercase())) || target_of(text) != text {
        return false;
    }
    let path = match (scheme, rest.strip_prefix("//")) {
        (Some(scheme), Some(rest)) => {
            let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
            let is_odd = |byte: u8| byte.is_ascii_uppercase() || matches!(byte, b'@' | b':') || scheme == FILE;
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

/// Percent-decodes repeatedly, because the percent sign itself may be encoded.
fn decoded(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_DECODE_PASSES {
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
    fn check_uri(uri: &str, other: Option<&str>) {
        assert_eq!(normalized_uri(uri).as_deref(), other, "{uri}");
    }

    #[test]
    fn uris_are_normalized() {
        check_uri("file:///pub/a", None);
        check_uri("https://example.com/a?b=c&d", None);
        check_uri("urn:isbn:1", None);
        check_uri("test://one", None);
        check_uri("file:///pub/../etc", Some("file:///etc"));
        check_uri("file:///pub/%2e%2E/etc", Some("file:///etc"));
        check_uri("file:///pub/%252e%252e/etc", Some("file:///etc"));
        check_uri("file:///pub/..%2f..%2Fetc", Some("file:///etc"));
        check_uri("file:///pub\\..\\etc", Some("file:///etc"));
        check_uri("file:///../../etc", Some("file:///etc"));
        check_uri("file:///pub//./etc/", Some("file:///pub/etc/"));
        check_uri("FILE:///etc/passwd", Some("file:///etc/passwd"));
        check_uri("file:/etc/passwd", Some("file:///etc/passwd"));
        check_uri("file://localhost/etc", Some("file:///etc"));
        check_uri("file:///%65tc", Some("file:///etc"));
        check_uri("file:///etc/passwd#x", Some("file:///etc/passwd"));
        check_uri("file:///etc/passwd?x", Some("file:///etc/passwd"));
        check_uri("file://elsewhere/etc", Some("file:///etc"));
        check_uri("http://localhost/./a", Some("http://localhost/a"));
        check_uri("db://x/./get?id=1", Some("db://x/get?id=1"));
        check_uri("https://Example.COM/a", Some("https://example.com/a"));
        check_uri("https://example.com/../a", Some("https://example.com/a"));
        for odd in
            ["file:///pub/.\t./etc", "file:///pub/..\n/etc", " file:///etc", "fi\rle:///etc", "\u{1}file:///etc\n"]
        {
            check_uri(odd, Some("file:///etc"));
        }
        for odd in ["http://a.b:80/x", "http://a.b:0080/x", "http://a.b:/x", "http://u@a.b/x", "http://a.b./x"] {
            check_uri(odd, Some("http://a.b/x"));
        }
        check_uri("http://a.b:8080/x", None);
        check_uri("http://[::01]/x", None);
        check_uri("db://user@host:1/x", None);
    }

    #[test]
    fn paths_have_one_or_two_interpretations_or_are_traversals() {
        let two = |text: &str| PathReading::Two(text.to_owned());
        for (path, reading) in [
            ("/tmp/a", PathReading::One),
            ("/tmp/", PathReading::One),
            ("a.b...c", PathReading::One),
            ("SELECT 100% of it", PathReading::One),
            ("https://a.b/c", PathReading::One),
            ("/tmp/..", PathReading::Traversal),
            ("/tmp/.\t./a", PathReading::Traversal),
            ("https://a.b/pub/.\n./c", PathReading::Traversal),
            ("/tmp/a\n", two("/tmp/a")),
            ("SELECT 1\nFROM x", two("SELECT 1FROM x")),
            ("..", PathReading::Traversal),
            ("/tmp/%2E./etc", PathReading::Traversal),
            ("/tmp/%252e%252e/etc", PathReading::Traversal),
            ("C:\\x\\..\\y", PathReading::Traversal),
            ("//etc/passwd", two("/etc/passwd")),
            ("/./etc", two("/etc")),
            ("/%65tc", two("/etc")),
            ("./etc", two("etc")),
            ("HTTPS://a.b/c", two("https://a.b/c")),
            (" /tmp/a", two("/tmp/a")),
            ("/tmp/a ", two("/tmp/a")),
            ("file:///tmp/a", PathReading::One),
            ("file://localhost/tmp/a", two("file:///tmp/a")),
            ("file:///tmp/a?b", two("file:///tmp/a")),
            ("file:///tmp/a#b", two("file:///tmp/a")),
            ("FILE:///tmp/a?b#c", two("file:///tmp/a")),
            ("https://a.b/c#d", two("https://a.b/c")),
            ("https://a.b/c?d", PathReading::One),
            ("/tmp/a?b#c", PathReading::One),
            ("file://elsewhere/tmp/a", two("file:///tmp/a")),
        ] {
            assert_eq!(reading_of(path), reading, "{path}");
        }
    }
}
