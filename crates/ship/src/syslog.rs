//! Sends lines as RFC 5424 messages, over UDP or to a Unix datagram socket.

use crate::error::ShipError;
use crate::target::Sink;
use serde_json::Value;
use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Facility 13 (log audit), severity 6 (informational).
const PRIORITY: u8 = 13 * 8 + 6;
/// A longer message does not fit a datagram. Lines of the log are far shorter.
const MAX_MESSAGE: usize = 60_000;
/// How long a daemon that does not read may hold up the shipper.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

pub struct SyslogSink {
    address: Address,
    socket: Option<Socket>,
    /// The fields of the header behind the time: host name, application and log.
    origin: String,
}

enum Address {
    Udp(String),
    Unix(PathBuf),
}

enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl SyslogSink {
    pub fn udp(address: &str, source: &str) -> Self {
        Self::new(Address::Udp(address.to_owned()), source)
    }

    pub fn unix(path: &Path, source: &str) -> Self {
        Self::new(Address::Unix(path.to_owned()), source)
    }

    fn new(address: Address, source: &str) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let origin = format!("{} toolbus {}", header_field(host.trim(), 255), header_field(source, 128));
        Self { address, socket: None, origin }
    }

    fn send_all(&mut self, lines: &[String]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.address.connect()?,
        };
        for line in lines {
            socket.send(&message(line, &self.origin))?;
        }
        socket.check()?;
        self.socket = Some(socket);
        Ok(())
    }
}

impl Sink for SyslogSink {
    fn send(&mut self, lines: &[String]) -> Result<(), ShipError> {
        self.send_all(lines).map_err(|source| ShipError::Syslog { address: self.address.text(), source })
    }
}

impl Address {
    fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Udp(address) => {
                let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                Ok(Socket::Udp(socket))
            }
            Self::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Socket::Unix(socket))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Udp(address) => address.clone(),
            Self::Unix(path) => path.display().to_string(),
        }
    }
}

impl Socket {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(message),
            Self::Unix(socket) => socket.send(message),
        }
        .map(drop)
    }

    /// UDP confirms nothing, but a closed port on this machine is reported with the last message.
    fn check(&self) -> io::Result<()> {
        let error = match self {
            Self::Udp(socket) => socket.take_error()?,
            Self::Unix(socket) => socket.take_error()?,
        };
        error.map_or(Ok(()), Err)
    }
}

fn message(line: &str, origin: &str) -> Vec<u8> {
    let fields: Value = serde_json::from_str(line).unwrap_or_default();
    let field = |name: &str, max| header_field(fields[name].as_str().unwrap_or_default(), max);
    let line = &line[..line.floor_char_boundary(MAX_MESSAGE)];
    format!("<{PRIORITY}>1 {} {origin} {} - {line}", field("time", 32), field("event", 32)).into_bytes()
}

/// Header fields are printable ASCII without spaces, of limited length; `-` if there is nothing.
fn header_field(text: &str, max: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).take(max).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}
