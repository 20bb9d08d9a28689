//! `--loopback-role` is for programs on this machine. A reverse proxy or tunnel there connects from loopback too, but
//! forwards requests of others.

use crate::support::soon;
use crate::up::UpInstance;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn status(address: &str, host: &str, header: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n{header}\r\n{body}",
        body.len()
    );
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    socket.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    soon("an answer", socket.read_to_string(&mut answer)).await.expect("text");
    answer
}

#[tokio::test]
async fn forwarded_requests_and_other_host_names_get_no_role() {
    let open = UpInstance::start(&["--loopback-role", "local", "--allow-host", "bus.example"]).await.settled().await;
    let address = open.address();
    for host in [address, "localhost", "127.0.0.1", "[::1]:1"] {
        let answer = status(address, host, "").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    let headers = [
        "Forwarded: for=192.0.2.1",
        "forwarded: ",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: localhost",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Anything: 1",
        "X-Real-IP: 127.0.0.1",
        "Via: 1.1 proxy",
        "CF-Connecting-IP: 192.0.2.1",
        "CF-Ray: 1",
        "True-Client-IP: 192.0.2.1",
        "Fastly-Client-IP: 192.0.2.1",
        "X-Client-IP: 192.0.2.1",
        "X-Cluster-Client-IP: 192.0.2.1",
        "X-Original-Forwarded-For: 192.0.2.1",
        "X-Original-Host: bus.example",
        "X-Envoy-External-Address: 192.0.2.1",
        "Tailscale-User-Login: eve@example.com",
        "Proxy-Connection: close",
        "CDN-Loop: cloudflare",
        "Forwarded-For: 192.0.2.1",
        "X_Forwarded_For: 192.0.2.1",
        "X-Vercel-Forwarded-For: 192.0.2.1",
        "Proxy-Client-IP: 192.0.2.1",
        "WL-Proxy-Client-IP: 192.0.2.1",
        "X-Remote-IP: 192.0.2.1",
        "X-Scheme: https",
        "Incap-Client-IP: 192.0.2.1",
        "X-Tunnel-Authorization: tunnel x",
        "Akamai-Origin-Hop: 1",
    ];
    let token = std::fs::read_to_string(open.folder.path().join("data/toolbus/token")).expect("a token");
    for header in headers {
        let answer = status(address, address, &format!("{header}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{header}: {answer}");
        let with_token = format!("{header}\r\nAuthorization: Bearer {}\r\n", token.trim());
        let answer = status(address, address, &with_token).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{header} with a token: {answer}");
    }
    let answer = status(address, "bus.example", "").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "another host name: {answer}");
    let answer = status(address, "evil.example", "").await;
    assert!(answer.contains("TB0111"), "DNS rebinding: {answer}");
}
