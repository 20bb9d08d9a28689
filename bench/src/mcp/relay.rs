//! A process that only forwards bytes between a client and a server, each over stdio or TCP. A chain of three of them
//! is the minimum cost of a path with as many processes and hops as client → connect → broker → host → server.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::Context;
use clap::Args;

#[derive(Args)]
pub struct McpRelayOptions {
    /// Accept clients on a loopback port; otherwise the client is at stdin and stdout.
    #[arg(long)]
    listen: bool,
    /// The next relay; otherwise the server is started for each client.
    #[arg(long, required_unless_present = "server")]
    dial: Option<SocketAddr>,
    /// Command line of the server.
    #[arg(last = true)]
    server: Vec<String>,
}

/// Serves clients until stdin ends, or until the process is killed.
pub fn serve(options: &McpRelayOptions) -> anyhow::Result<()> {
    if !options.listen {
        let client = End { reader: Box::new(io::stdin()), writer: Box::new(io::stdout()), child: None };
        return forward(client, options.next()?);
    }
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    println!("listening on {}", listener.local_addr().context("read the address")?);
    crate::process::exit_with_parent();
    for client in listener.incoming() {
        let (client, next) = (End::tcp(client.context("accept")?)?, options.next()?);
        thread::spawn(move || {
            if let Err(error) = forward(client, next) {
                eprintln!("a client's connection ended: {error:#}");
            }
        });
    }
    Ok(())
}

impl McpRelayOptions {
    fn next(&self) -> anyhow::Result<End> {
        match self.dial {
            Some(address) => End::tcp(TcpStream::connect(address).context("connect to the next relay")?),
            None => End::server(&self.server),
        }
    }
}

struct End {
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
    child: Option<Child>,
}

impl End {
    fn tcp(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let reader = stream.try_clone().context("clone a stream")?;
        Ok(Self { reader: Box::new(reader), writer: Box::new(Sending(stream)), child: None })
    }

    fn server(argv: &[String]) -> anyhow::Result<Self> {
        let (program, args) = argv.split_first().context("a server has a program")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the server")?;
        let reader = child.stdout.take().context("stdout is piped")?;
        let writer = child.stdin.take().context("stdin is piped")?;
        Ok(Self { reader: Box::new(reader), writer: Box::new(writer), child: Some(child) })
    }
}

/// Copies both directions until both have ended. The end of one closes the writer behind it.
fn forward(client: End, next: End) -> anyhow::Result<()> {
    let (mut reader, mut writer) = (client.reader, next.writer);
    thread::spawn(move || io::copy(&mut reader, &mut writer));
    let (mut reader, mut writer) = (next.reader, client.writer);
    io::copy(&mut reader, &mut writer).context("forward to the client")?;
    if let Some(mut child) = next.child {
        child.wait().context("wait for the server")?;
    }
    Ok(())
}

/// The sending half of a stream: the other side reads EOF when it is dropped, although the receiving half is open.
struct Sending(TcpStream);

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // An error means that the connection has ended already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
