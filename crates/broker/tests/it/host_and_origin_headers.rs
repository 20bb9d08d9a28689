//! All combinations of `Host` and `Origin` headers on every path: requests of a foreign web page are refused, requests
//! of programs and of the broker's own pages are accepted.

use crate::apps::Echo;
use crate::support::{Bus, Setup, request, upgrade_request};
use std::sync::Arc;
use toolbus_broker::ServerOptions;

/// A `Host` header (PORT is the broker's port), and whether it is accepted.
const HOSTS: [(&str, bool); 12] = [
    ("localhost:PORT", true),
    ("localhost", true),
    ("LOCALHOST:1", true),
    ("127.0.0.1:PORT", true),
    ("[::1]:PORT", true),
    ("bus.example:PORT", true),
    ("evil.example:PORT", false),
    ("evil.example", false),
    ("localhost.evil.example:PORT", false),
    ("192.168.0.9:PORT", false),
    ("127.0.0.1@evil.example", false),
    ("", false),
];

/// An `Origin` header, whether the bus accepts it, and whether an app accepts it if the host is a loopback name.
const ORIGINS: [(&str, bool, bool); 12] = [
    ("", true, true),
    ("https://console.example", true, true),
    ("http://localhost:PORT", false, true),
    ("http://127.0.0.1:PORT", false, true),
    ("http://[::1]:PORT", false, true),
    ("http://localhost:1", false, false),
    ("http://localhost", false, false),
    ("https://localhost:PORT", false, false),
    ("http://localhost:PORT@evil.example", false, false),
    ("http://evil.example:PORT", false, false),
    ("https://evil.example", false, false),
    ("null", false, false),
];

async fn bus() -> Bus {
    let server = ServerOptions {
        allowed_hosts: vec!["bus.example".into()],
        allowed_origins: vec!["https://console.example".into()],
        ..ServerOptions::default()
    };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    bus.server().mount("/mcp", Arc::new(Echo));
    bus
}

fn expected(host_accepted: bool, origin_accepted: bool, success: u16) -> (u16, &'static str) {
    match (host_accepted, origin_accepted) {
        (false, _) => (403, "TB0111"),
        (true, false) => (403, "TB0110"),
        (true, true) => (success, ""),
    }
}

#[tokio::test]
async fn every_host_and_origin_is_checked_on_every_path() {
    let bus = bus().await;
    let port = bus.address.port().to_string();
    for (host, host_accepted) in HOSTS {
        for (origin, bus_accepts, app_accepts) in ORIGINS {
            let line = match origin {
                "" => String::new(),
                origin => format!("Origin: {}\r\n", origin.replace("PORT", &port)),
            };
            let host_line = format!("Host: {}\r\n", host.replace("PORT", &port));
            let app_accepts = app_accepts && (bus_accepts || !host.starts_with("bus."));
            let post =
                format!("POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: 2\r\n{host_line}{line}\r\nhi");
            // Without the version header an accepted upgrade ends with 426 instead of a connection.
            let upgrade = upgrade_request(bus.address, "/bus", &line)
                .replace(&format!("Host: {}\r\n", bus.address), &host_line)
                .replace("Sec-WebSocket-Version: 13\r\n", "");
            for (bytes, (status, code)) in [
                (post, expected(host_accepted, app_accepts, 200)),
                (upgrade, expected(host_accepted, bus_accepts, 426)),
            ] {
                let answer = request(bus.address, &bytes).await;
                assert_eq!(answer.status, status, "{bytes}\n{}", answer.body);
                assert!(answer.body.contains(code), "{bytes}\n{}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn only_healthz_ignores_the_host_header() {
    let bus = bus().await;
    for (path, status) in [("/healthz", 200), ("/readyz", 403), ("/", 403), ("/nothing", 403), ("/mcp", 403)] {
        for host in ["Host: evil.example\r\n", "", "Host: localhost\r\nHost: evil.example\r\n"] {
            let answer = request(bus.address, format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n")).await;
            assert_eq!(answer.status, status, "{path} {host}");
        }
    }
    let absolute = "GET http://evil.example/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(request(bus.address, absolute).await.status, 403);
    let accepted = "GET http://localhost/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(request(bus.address, accepted).await.status, 200);
}
