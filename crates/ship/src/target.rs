//! Where lines are shipped to, as written in the configuration.

use crate::error::ShipError;
use crate::{file, otlp, syslog};
use hyper::Uri;
use std::fmt;
use std::path::PathBuf;

/// A place for copies of audit lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Appends the lines to a file.
    File(PathBuf),
    /// Sends RFC 5424 messages over UDP to `HOST:PORT`.
    SyslogUdp(String),
    /// Sends RFC 5424 messages to a Unix datagram socket.
    SyslogUnix(PathBuf),
    /// Posts log records as OTLP/HTTP in JSON.
    Otlp(Uri),
}

impl Target {
    /// Describes what [`Self::parse`] accepts.
    pub const EXPECTED: &str =
        "\"file:/PATH\", \"syslog:udp://HOST:PORT\", \"syslog:unix:/dev/log\" or \"otlp:http://HOST:4318\"";

    /// Parses the text of a target. Paths are absolute, because services have different working folders.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let path =
            |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute() && path.file_name().is_some());
        match kind {
            "file" => path(rest).map(Self::File),
            "syslog" => match rest.strip_prefix("udp://") {
                Some(address) => {
                    let (host, port) = address.rsplit_once(':')?;
                    (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| Self::SyslogUdp(address.to_owned()))
                }
                None => path(rest.strip_prefix("unix:")?).map(Self::SyslogUnix),
            },
            "otlp" => {
                let url: Uri = rest.parse().ok()?;
                (matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()).then_some(Self::Otlp(url))
            }
            _ => None,
        }
    }

    /// Opens the connection lazily: a target may be away.
    pub(crate) fn sink(&self, source: &str) -> Box<dyn Sink> {
        match self {
            Self::File(path) => Box::new(file::FileSink::new(path)),
            Self::SyslogUdp(address) => Box::new(syslog::SyslogSink::udp(address, source)),
            Self::SyslogUnix(path) => Box::new(syslog::SyslogSink::unix(path, source)),
            Self::Otlp(url) => Box::new(otlp::OtlpSink::new(url, source)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::SyslogUdp(address) => write!(f, "syslog:udp://{address}"),
            Self::SyslogUnix(path) => write!(f, "syslog:unix:{}", path.display()),
            Self::Otlp(url) => write!(f, "otlp:{url}"),
        }
    }
}

/// Takes batches of lines. Blocks, with a limit, on the thread of the shipper.
pub(crate) trait Sink: Send {
    /// Returns when the target has taken all lines. After an error the whole batch is sent again.
    fn send(&mut self, lines: &[String]) -> Result<(), ShipError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_and_print_their_own_text() {
        for text in [
            "file:/mnt/audit.jsonl",
            "syslog:udp://127.0.0.1:514",
            "syslog:udp://[::1]:514",
            "syslog:unix:/dev/log",
            "otlp:http://127.0.0.1:4318/",
            "otlp:https://otel.example/v1/logs",
        ] {
            assert_eq!(Target::parse(text).expect(text).to_string(), text);
        }
        for wrong in [
            "",
            "file:",
            "file:relative",
            "file:/",
            "syslog:udp://x",
            "syslog:udp://:514",
            "syslog:tcp://x:514",
            "otlp:x",
            "otlp:ftp://x",
        ] {
            assert_eq!(Target::parse(wrong), None, "{wrong}");
        }
    }
}
