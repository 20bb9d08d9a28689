//! Web pages: only allowed origins may open a bus connection, compared byte by byte.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, Logs, Setup, get, request, upgrade_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_broker::ServerOptions;

const ALLOWED: [&str; 2] = ["https://console.example", "http://localhost:3000"];

async fn bus_for(origins: &[&str]) -> Bus {
    let allowed_origins = origins.iter().map(|origin| origin.to_string()).collect();
    let server = ServerOptions { allowed_origins, ..ServerOptions::default() };
    Bus::with(Setup { server, ..Setup::default() }).await
}

fn origin(value: &str) -> String {
    format!("Origin: {value}\r\n")
}

async fn check_accepted(bus: &Bus, path: &str, headers: &str) {
    let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
    socket.write_all(upgrade_request(bus.address, path, headers).as_bytes()).await.expect("the request is sent");
    let mut head = vec![0; 12];
    crate::support::within("a response", socket.read_exact(&mut head)).await.expect("a response");
    assert_eq!(head, b"HTTP/1.1 101", "{path} {headers}");
}

async fn check_refused(bus: &Bus, path: &str, headers: &str) {
    let answer = request(bus.address, upgrade_request(bus.address, path, headers)).await;
    assert_eq!(answer.status, 403, "{path} {headers}");
    assert!(answer.body.starts_with("TB0110 ") && answer.body.contains("hint: "), "{}", answer.body);
}

#[tokio::test]
async fn requests_without_an_origin_are_accepted() {
    for origins in [&[][..], &ALLOWED[..]] {
        let bus = bus_for(origins).await;
        check_accepted(&bus, "/bus", "").await;
        check_accepted(&bus, "/", "").await;
    }
}

#[tokio::test]
async fn by_default_every_origin_is_refused() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let own = format!("http://{}", bus.address);
    for value in [&own, "http://localhost", "https://console.example", "null", "", "file://", "chrome-extension://x"] {
        check_refused(&bus, "/bus", &origin(value)).await;
        check_refused(&bus, "/", &origin(value)).await;
    }
    healthy.exchange_message().await;
}

#[tokio::test]
async fn only_exact_matches_of_allowed_origins_are_accepted() {
    let bus = bus_for(&ALLOWED).await;
    for value in ALLOWED {
        check_accepted(&bus, "/bus", &origin(value)).await;
        check_accepted(&bus, "/", &format!("oRiGiN:{value}\r\n")).await;
    }
    for value in [
        "",
        "null",
        "*",
        "https://console.example.evil.example",
        "https://console.exampl",
        "https://evil.example/https://console.example",
        "https://console.example@evil.example",
        "https://evilconsole.example",
        "https://sub.console.example",
        "https://console.example/",
        "https://console.example:443",
        "https://console.example:8443",
        "http://console.example",
        "HTTPS://CONSOLE.EXAMPLE",
        "https://Console.example",
        "//console.example",
        "console.example",
        "https://console.example, https://evil.example",
        "https://evil.example, https://console.example",
        "https://console.example https://evil.example",
        "http://localhost",
        "http://localhost:30000",
        "http://127.0.0.1:3000",
        "http://localhost:3000\u{e9}",
    ] {
        check_refused(&bus, "/bus", &origin(value)).await;
    }
}

#[tokio::test]
async fn a_second_origin_header_is_checked_as_well() {
    let bus = bus_for(&ALLOWED).await;
    let both = |first: &str, second: &str| format!("{}{}", origin(first), origin(second));
    check_refused(&bus, "/bus", &both("https://console.example", "https://evil.example")).await;
    check_refused(&bus, "/bus", &both("https://evil.example", "https://console.example")).await;
    check_accepted(&bus, "/bus", &both("https://console.example", "https://console.example")).await;
}

#[tokio::test]
async fn a_refused_origin_is_logged_once() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    check_refused(&bus, "/bus", &origin("https://evil.example")).await;
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("TB0110") && warnings[0].contains("https://evil.example"), "{warnings:?}");
    let health = get(bus.address, "/healthz").await;
    assert_eq!(health.header("access-control-allow-origin"), None);
}
