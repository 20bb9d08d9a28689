//! What syslog daemons and collectors receive, and that a target which hangs holds up no writer.

use crate::support::{TestLog, lines, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc;
use std::time::Duration;
use toolbus_ship::{ShipState, Target};

const LIMIT: Duration = Duration::from_secs(20);

/// Checks RFC 5424 messages, and returns the lines in them.
fn lines_of(messages: &[String]) -> Vec<String> {
    let line = |message: &String| {
        let fields: Vec<&str> = message.splitn(8, ' ').collect();
        let [priority, time, host, application, process, id, data, line] = fields[..] else { panic!("{message}") };
        let parsed: Value = serde_json::from_str(line).expect("the line is unchanged");
        assert_eq!((priority, application, process, data), ("<110>1", "toolbus", "host_one", "-"));
        assert_eq!((Some(time), Some(id)), (parsed["time"].as_str(), parsed["event"].as_str()));
        assert!(!host.is_empty());
        line.to_owned()
    };
    messages.iter().map(line).collect()
}

fn receive(count: usize, mut datagram: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Vec<String> {
    let mut buffer = vec![0; 65536];
    let mut next = || {
        let length = datagram(&mut buffer).expect("a message");
        String::from_utf8(buffer[..length].to_vec()).expect("text")
    };
    (0..count).map(|_| next()).collect()
}

#[tokio::test]
async fn syslog_over_udp_gets_every_line_also_after_the_daemon_was_away() {
    let log = TestLog::open(100);
    let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let _shipper = log.ship(&Target::SyslogUdp(address.to_string()));
    log.write(7).await;
    let outage = until("the outage", || ShipState::read(log.path())?.outage);
    assert!(outage.error.contains(&address.to_string()), "{outage:?}");
    let daemon = UdpSocket::bind(address).expect("the port is still free");
    daemon.set_read_timeout(Some(LIMIT)).expect("a limit");
    let expected = lines(log.path());
    let messages = receive(expected.len(), |buffer| daemon.recv(buffer));
    assert_eq!(lines_of(&messages), expected);
}

#[tokio::test]
async fn syslog_over_a_unix_socket_gets_every_line() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    let path = place.path().join("log");
    let daemon = UnixDatagram::bind(&path).expect("a socket");
    daemon.set_read_timeout(Some(LIMIT)).expect("a limit");
    let _shipper = log.ship(&Target::SyslogUnix(path));
    log.write(7).await;
    let expected = lines(log.path());
    let messages = receive(expected.len(), |buffer| daemon.recv(buffer));
    assert_eq!(lines_of(&messages), expected);
}

/// Reads one HTTP request, answers it, and returns its body.
fn answer(socket: &mut TcpStream, status: &str, body: &str) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("a request");
        request.push(byte[0]);
    }
    let head = String::from_utf8(request).expect("text").to_lowercase();
    assert!(head.starts_with("post /v1/logs ") && head.contains("content-type: application/json"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut content = vec![0; length.parse().expect("a number")];
    socket.read_exact(&mut content).expect("a body");
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    socket.write_all(answer.as_bytes()).expect("sent");
    String::from_utf8(content).expect("text")
}

#[tokio::test]
async fn a_collector_gets_log_records_and_refused_ones_again() {
    let log = TestLog::open(100);
    log.write(3).await;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("otlp:http://{}", listener.local_addr().expect("an address"));
    let (bodies, received) = mpsc::sync_channel(100);
    std::thread::spawn(move || {
        let rejected = r#"{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"no"}}"#;
        let answers = [("503 Service Unavailable", ""), ("200 OK", rejected)];
        for (status, body) in answers.into_iter().chain(std::iter::repeat(("200 OK", "{}"))) {
            let (mut socket, _) = listener.accept().expect("a connection");
            bodies.send(answer(&mut socket, status, body)).expect("the test listens");
        }
    });
    let _shipper = log.ship(&Target::parse(&url).expect("a target"));
    let expected = log.shipped();
    let first = received.recv_timeout(LIMIT).expect("a request");
    assert_eq!(first, received.recv_timeout(LIMIT).expect("a second request"), "it is sent again after an error");
    assert_eq!(first, received.recv_timeout(LIMIT).expect("a third request"), "and if lines were rejected");
    let body: Value = serde_json::from_str(&first).expect("JSON");
    let logs = &body["resourceLogs"][0];
    assert_eq!(logs["resource"]["attributes"][1]["value"]["stringValue"], "host one");
    let records = logs["scopeLogs"][0]["logRecords"].as_array().expect("records");
    let lines: Vec<&str> = records.iter().filter_map(|record| record["body"]["stringValue"].as_str()).collect();
    assert_eq!(lines, expected);
    let line: Value = serde_json::from_str(lines[0]).expect("JSON");
    let time: i128 = records[0]["timeUnixNano"].as_str().expect("text").parse().expect("a number");
    let written: jiff::Timestamp = line["time"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(time, written.as_nanosecond());
}

#[tokio::test]
async fn a_target_that_hangs_holds_up_no_writer_and_no_stop() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let log = TestLog::open(100);
    let url = format!("otlp:http://{}", listener.local_addr().expect("an address"));
    let shipper = log.ship(&Target::parse(&url).expect("a target"));
    let _silent = listener.accept().expect("the shipper waits for an answer");
    tokio::time::timeout(LIMIT, log.write(500)).await.expect("lines are written");
    drop((shipper, log));
}
