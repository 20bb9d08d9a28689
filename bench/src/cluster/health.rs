//! Health checks over HTTP, as a load balancer makes them.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const LIMIT: Duration = Duration::from_millis(500);
const STATUS_OK: &[u8] = b" 200 ";

/// Whether a GET of this path is answered with status 200 in time.
pub async fn is_ok(port: u16, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    let check = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut status = [0; "HTTP/1.1 200 ".len()];
        stream.read_exact(&mut status).await?;
        std::io::Result::Ok(status.ends_with(STATUS_OK))
    };
    matches!(tokio::time::timeout(LIMIT, check).await, Ok(Ok(true)))
}
