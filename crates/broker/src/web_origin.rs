//! Checks of the `Host` and `Origin` headers. A foreign web page in a browser on this machine must not reach the
//! broker: neither by a cross-origin request (checked by `Origin`) nor by DNS rebinding (checked by `Host`).

use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Request, Uri};
use std::net::{IpAddr, SocketAddr};
use toolbus_protocol::ErrorCode;

/// The accepted host names and origins of one connection.
pub struct WebRules<'a> {
    /// Address of the listener.
    pub bound: SocketAddr,
    /// The connection uses TLS, so the client has verified the host name against the certificate.
    pub is_encrypted: bool,
    pub allowed_hosts: &'a [String],
    pub allowed_origins: &'a [String],
}

impl WebRules<'_> {
    /// Requires at least one `Host` header, and that all of them and the authority of the request URI are accepted.
    /// Over TLS any name is accepted: with DNS rebinding, certificate verification would have failed.
    pub fn check_host<B>(&self, request: &Request<B>) -> Result<(), ErrorCode> {
        let mut hosts = request.headers().get_all(HOST).iter().peekable();
        let accepted = hosts.peek().is_some()
            && hosts.all(|host| authority(host).is_some_and(|host| self.accepts_host(&host)))
            && request.uri().authority().is_none_or(|host| self.accepts_host(host));
        if accepted { Ok(()) } else { Err(ErrorCode::HostRefused) }
    }

    fn accepts_host(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        if self.is_encrypted || is_loopback(authority) {
            return true;
        }
        let allowed = |allowed: &String| {
            allowed.eq_ignore_ascii_case(authority.host()) || allowed.eq_ignore_ascii_case(authority.as_str())
        };
        // DNS rebinding needs a name, so an IP address is safe if the broker listens on the network.
        let by_address = |ip: IpAddr| ip == self.bound.ip() || !self.bound.ip().is_loopback();
        self.allowed_hosts.iter().any(allowed) || ip_of(authority).is_some_and(by_address)
    }

    /// Requires that every `Origin` header is in `allowed_origins`; a second header is checked as well. Returns the
    /// foreign origin otherwise.
    pub fn check_origin<'h>(&self, headers: &'h HeaderMap) -> Result<(), &'h HeaderValue> {
        self.check_origins(headers, |_| false)
    }

    /// Like [`check_origin`](Self::check_origin), but for apps also accepts pages that the broker itself served. The
    /// origin `http://localhost:PORT` belongs to the process that listens on that port of the browser's machine; if the
    /// request went to a loopback host as well, that process is this broker. Other ports are foreign origins.
    pub fn check_app_origin<'h>(&self, headers: &'h HeaderMap) -> Result<(), &'h HeaderValue> {
        let is_local = |host| authority(host).is_some_and(|host| is_loopback(&host));
        let is_own = |origin: &_| headers.get_all(HOST).iter().all(is_local) && self.is_own_page(origin);
        self.check_origins(headers, is_own)
    }

    fn check_origins<'h>(
        &self,
        headers: &'h HeaderMap,
        own: impl Fn(&HeaderValue) -> bool,
    ) -> Result<(), &'h HeaderValue> {
        let named =
            |origin: &HeaderValue| self.allowed_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
        headers.get_all(ORIGIN).iter().find(|origin| !named(origin) && !own(origin)).map_or(Ok(()), Err)
    }

    fn is_own_page(&self, origin: &HeaderValue) -> bool {
        let (scheme, default_port) = if self.is_encrypted { ("https://", 443) } else { ("http://", 80) };
        let Some(authority) = origin.to_str().ok().and_then(|origin| origin.strip_prefix(scheme)) else {
            return false;
        };
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let port = authority.port_u16().unwrap_or(default_port);
        !authority.as_str().contains('@') && port == self.bound.port() && is_loopback(&authority)
    }
}

/// Headers by which reverse proxies and tunnels name the client that they forward for, or themselves.
const FORWARDING_HEADERS: &[&str] = &[
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-proxyuser-ip",
    "true-client-ip",
    "fastly-client-ip",
    "x-remote-ip",
    "x-remote-addr",
    "remote-addr",
    "x-scheme",
    "x-nginx-proxy",
    "x-tunnel-authorization",
    "x-coming-from",
    "incap-client-ip",
    "proxy-client-ip",
    "wl-proxy-client-ip",
    "cdn-loop",
    "proxy-connection",
];
const FORWARDING_PREFIXES: &[&str] = &[
    "x-original-",
    "x-envoy-",
    "x-amzn-",
    "x-azure-",
    "x-appengine-",
    "cf-",
    "fly-",
    "tailscale-",
    "ngrok-",
    "akamai-",
    "x-akamai-",
    "x-vercel-",
];
/// In all names of headers that proxies invent for it.
const FORWARDED: &str = "forwarded";

/// Whether a request on a loopback connection was made on this machine: it names a loopback host, and no header says that
/// a proxy or tunnel on this machine forwards it.
pub fn is_local_request<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let is_forwarding = |name: &str| {
        let name = name.replace('_', "-");
        let begins = || FORWARDING_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        name.contains(FORWARDED) || FORWARDING_HEADERS.contains(&name.as_str()) || begins()
    };
    headers.get_all(HOST).iter().all(|host| authority(host).is_some_and(|host| is_loopback(&host)))
        && request.uri().authority().is_none_or(is_loopback)
        && !headers.keys().any(|name| is_forwarding(name.as_str()))
}

fn authority(value: &HeaderValue) -> Option<Authority> {
    // Parsed as a URI, because `Authority` alone would accept trailing characters.
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
    fn a_broker_on_loopback_accepts_only_loopback_hosts() {
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
        assert!(!check("127.0.0.1:7420", None, &[]), "no Host header");
    }

    #[test]
    fn a_broker_on_the_network_accepts_addresses_and_allowed_hosts() {
        for bound in ["0.0.0.0:7420", "192.168.1.7:7420", "[::]:7420"] {
            for host in ["192.168.1.7:7420", "10.0.0.1", "[fd00::1]:7420", "localhost:7420"] {
                assert!(check(bound, Some(host), &[]), "{bound} {host}");
            }
            assert!(!check(bound, Some("bus.example:7420"), &[]));
            for allowed in ["bus.example", "BUS.example:7420"] {
                assert!(check(bound, Some("bus.example:7420"), &[allowed]), "{allowed}");
            }
            assert!(!check(bound, Some("bus.example:1"), &["bus.example:7420"]), "another port is allowed");
            assert!(!check(bound, Some("sub.bus.example"), &["bus.example"]));
        }
    }
}
