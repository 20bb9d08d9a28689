//! Whom a browser may talk to us for. A page of a stranger must not reach the broker on a victim's own machine: neither
//! directly, which its `Origin` betrays, nor by a name that was rebound to our address, which the `Host` betrays.

use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Request, Uri};
use std::net::{IpAddr, SocketAddr};
use toolbus_protocol::ErrorCode;

/// Which names and origins are ours.
pub struct WebRules<'a> {
    /// Where the listener is bound.
    pub bound: SocketAddr,
    /// Over TLS: then the client has checked the name that it calls us by.
    pub is_encrypted: bool,
    pub allowed_hosts: &'a [String],
    pub allowed_origins: &'a [String],
}

impl WebRules<'_> {
    /// Every name that the request calls us by has to be ours; it has to call us something. Over TLS a name that was
    /// rebound to our address has failed before, because our certificate is not for it.
    pub fn check_host<B>(&self, request: &Request<B>) -> Result<(), ErrorCode> {
        let mut named = request.headers().get_all(HOST).iter().peekable();
        let known = named.peek().is_some()
            && named.all(|host| authority(host).is_some_and(|host| self.knows(&host)))
            && request.uri().authority().is_none_or(|host| self.knows(host));
        if known { Ok(()) } else { Err(ErrorCode::HostRefused) }
    }

    fn knows(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        if self.is_encrypted || is_loopback(authority) {
            return true;
        }
        let allowed = |allowed: &String| {
            allowed.eq_ignore_ascii_case(authority.host()) || allowed.eq_ignore_ascii_case(authority.as_str())
        };
        // Rebinding needs a name. Who calls a broker that is open to the network by an address has not been tricked.
        let by_address = |ip: IpAddr| ip == self.bound.ip() || !self.bound.ip().is_loopback();
        self.allowed_hosts.iter().any(allowed) || ip_of(authority).is_some_and(by_address)
    }

    /// Every origin has to be one that the operator named: a second one must not hide behind the first.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), ErrorCode> {
        self.check_origins(headers, |_| false)
    }

    /// The same for apps, which also take pages from our own port: `http://localhost:PORT` is the origin of pages that
    /// were served by whoever listens on that port of the browser's machine. When the request went to a loopback host as
    /// well, that is us, and nobody else can serve a page that has this origin. Pages from other ports are strangers.
    pub fn check_app_origin(&self, headers: &HeaderMap) -> Result<(), ErrorCode> {
        let local = headers.get_all(HOST).iter().all(|host| authority(host).is_some_and(|host| is_loopback(&host)));
        self.check_origins(headers, |origin| local && self.is_own_page(origin))
    }

    fn check_origins(&self, headers: &HeaderMap, own: impl Fn(&HeaderValue) -> bool) -> Result<(), ErrorCode> {
        let named =
            |origin: &HeaderValue| self.allowed_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
        match headers.get_all(ORIGIN).iter().find(|origin| !named(origin) && !own(origin)) {
            None => Ok(()),
            Some(origin) => {
                tracing::warn!(?origin, code = ErrorCode::OriginRefused.code(), "a web page was refused");
                Err(ErrorCode::OriginRefused)
            }
        }
    }

    fn is_own_page(&self, origin: &HeaderValue) -> bool {
        let (scheme, usual_port) = if self.is_encrypted { ("https://", 443) } else { ("http://", 80) };
        let Some(authority) = origin.to_str().ok().and_then(|origin| origin.strip_prefix(scheme)) else {
            return false;
        };
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let port = authority.port_u16().unwrap_or(usual_port);
        !authority.as_str().contains('@') && port == self.bound.port() && is_loopback(&authority)
    }
}

fn authority(value: &HeaderValue) -> Option<Authority> {
    // By way of a URI: an authority alone may be followed by anything.
    let uri: Uri = value.to_str().ok()?.parse().ok()?;
    let authority = uri.authority()?;
    (uri.scheme().is_none() && authority.as_str().as_bytes() == value.as_bytes()).then(|| authority.clone())
}

fn is_loopback(authority: &Authority) -> bool {
    authority.host().eq_ignore_ascii_case("localhost")
        || ip_of(authority).is_some_and(|ip| ip.to_canonical().is_loopback())
}

fn ip_of(authority: &Authority) -> Option<IpAddr> {
    let host = authority.host();
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bound: &str, host: Option<&str>, allowed: &[&str]) -> bool {
        let allowed_hosts: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let bound = bound.parse().expect("an address");
        let rules = WebRules { bound, is_encrypted: false, allowed_hosts: &allowed_hosts, allowed_origins: &[] };
        let mut request = Request::get("/mcp");
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        rules.check_host(&request.body(()).expect("a request")).is_ok()
    }

    #[test]
    fn a_broker_on_loopback_answers_to_loopback_names_only() {
        for host in
            ["localhost", "LocalHost:1", "localhost:7420", "127.0.0.1", "127.0.0.1:9", "127.8.8.8", "[::1]:7420"]
        {
            assert!(check("127.0.0.1:7420", Some(host), &[]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7420",
            "localhost.evil.example",
            "evil.localhost",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost/evil",
            "http://localhost",
            "localhost:7420:1",
            "localhost, evil.example",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f000001",
            "2130706433",
            "192.168.1.7:7420",
            "0.0.0.0:7420",
            "::1",
            "[::2]",
            "",
            " ",
            "*",
        ] {
            assert!(!check("127.0.0.1:7420", Some(host), &[]), "{host}");
        }
        assert!(!check("127.0.0.1:7420", None, &[]), "no host at all");
    }

    #[test]
    fn a_broker_on_the_network_answers_to_addresses_and_to_the_names_it_was_given() {
        for bound in ["0.0.0.0:7420", "192.168.1.7:7420", "[::]:7420"] {
            for host in ["192.168.1.7:7420", "10.0.0.1", "[fd00::1]:7420", "localhost:7420"] {
                assert!(check(bound, Some(host), &[]), "{bound} {host}");
            }
            assert!(!check(bound, Some("bus.example:7420"), &[]));
            for allowed in ["bus.example", "BUS.example:7420"] {
                assert!(check(bound, Some("bus.example:7420"), &[allowed]), "{allowed}");
            }
            assert!(!check(bound, Some("bus.example:1"), &["bus.example:7420"]), "that port was not meant");
            assert!(!check(bound, Some("sub.bus.example"), &["bus.example"]));
        }
    }
}
