//! Measures the latency that this crate adds to a call: the same exchange over bare pipes and through a connection.
//!
//! `cargo run --release -p toolbus-upstream --example latency`

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use toolbus_mcp::{Era, raw};
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerConnection};

const CALLS: usize = 20_000;

/// With the argument `serve`, this program is the server and answers every line at once.
fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let program = std::env::current_exe().expect("path of this program");
    let program = program.to_str().expect("UTF-8");
    report("bare pipes", bare(program));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime is built");
    report("connection, one thread", runtime.block_on(connected(program)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime is built");
    let task = async { tokio::spawn(connected_owned(program.to_owned())).await.expect("no panic") };
    report("connection, two threads", runtime.block_on(task));
}

fn serve() {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let id = line.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next()).unwrap_or("0");
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[]}}}}\n");
        output.write_all(answer.as_bytes()).and_then(|()| output.flush()).expect("the peer reads");
    }
}

fn bare(program: &str) -> Vec<Duration> {
    let mut child =
        Command::new(program).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("server starts");
    let mut input = child.stdin.take().expect("pipe");
    let mut output = BufReader::new(child.stdout.take().expect("pipe"));
    let mut line = String::new();
    let mut times = Vec::new();
    for id in 0..CALLS {
        let started = Instant::now();
        let request = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"x\",\"arguments\":{{}}}}}}\n"
        );
        input.write_all(request.as_bytes()).expect("the peer reads");
        line.clear();
        output.read_line(&mut line).expect("response");
        times.push(started.elapsed());
    }
    drop(input);
    child.wait().expect("server exits");
    times
}

async fn connected_owned(program: String) -> Vec<Duration> {
    connected(&program).await
}

async fn connected(program: &str) -> Vec<Duration> {
    let config = ServerConfig::stdio("echo", program, &["serve"]);
    let (events, _owner) = mpsc::channel(16);
    let options = ConnectionOptions::default();
    let connection = ServerConnection::open(&config, Era::Legacy, &options, events).await.expect("server starts");
    let params = raw(&serde_json::json!({"name": "x", "arguments": {}}));
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let started = Instant::now();
        let call = connection.start("tools/call", Some(params.clone())).await.expect("sent");
        call.outcome().await.expect("response");
        times.push(started.elapsed());
    }
    connection.close().await;
    times
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{name:24} p50 {:6.1} µs   p99 {:6.1} µs", at(0.5), at(0.99));
}
