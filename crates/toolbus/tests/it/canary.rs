//! Secrets with a recognisable text (the canary) are planted as an agent's token and as environment variable, file,
//! command output and header of servers that leak them in every message. The canary must not occur in any log, file,
//! page or output, nor in any byte sent to a worker.

use crate::mcp_process::python;
use crate::support::soon;
use crate::up::{CommandOutput, toolbus};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;

/// Every canary begins with this text, so that a partial leak is found too.
const CANARY: &str = "cnry7f3a";

const LEAKY: &str = r#"
import json, os, sys
secrets = " ".join(os.environ[name] for name in ["API_TOKEN", "FROM_FILE", "FROM_EXEC"])
sys.stderr.write("starting with " + secrets + "\n")
if os.path.exists(sys.argv[1]):
    sys.stderr.write("not any more, says " + secrets)
    sys.exit(4)
def send(message):
    print(json.dumps(dict(message, jsonrpc="2.0")), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "leaky", "version": secrets}
        send({"id": id, "result": {"protocolVersion": params["protocolVersion"], "serverInfo": info,
                                   "capabilities": {"tools": {}, "logging": {}}, "instructions": secrets}})
    elif method == "tools/list":
        names = ["say", "fail", "noise", "die"]
        send({"id": id, "result": {"tools": [{"name": n, "description": secrets, "inputSchema": {"type": "object"}} for n in names]}})
    elif method == "tools/call" and params["name"] == "say":
        send({"id": id, "result": {"content": [{"type": "text", "text": secrets}], "structuredContent": {secrets: secrets}}})
    elif method == "tools/call" and params["name"] == "noise":
        print("not JSON at all: " + secrets, flush=True)
        send({"method": "notifications/message", "params": {"level": "error", "data": secrets}})
        token = params.get("_meta", {}).get("progressToken")
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": secrets}})
        send({"id": id, "result": {"content": []}})
    elif method == "tools/call" and params["name"] == "fail":
        send({"id": id, "error": {"code": -32000, "message": secrets, "data": {"env": secrets}}})
    elif method == "tools/call":
        sys.stderr.write("x" * 480 + " " + secrets + "\n" + secrets)
        sys.stderr.flush()
        os._exit(3)
    else:
        send({"id": id, "error": {"code": -32601, "message": "no " + method}})
"#;

struct LeakyService {
    folder: TempDir,
    child: Child,
    url: String,
    banner: Arc<Mutex<String>>,
}

impl LeakyService {
    async fn start(web: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("leaky.py"), LEAKY).expect("written");
        std::fs::write(file("secret"), format!("{CANARY}-file\n")).expect("written");
        let config = format!(
            "[roles.worker]\nallow = ['**']\n[roles.operator]\nallow = ['**']\n\
             [servers.shared]\ncommand = {:?}\nargs = ['-u', {:?}, {:?}]\nsession = 'shared'\nprefix = 'shared_'\n\
             env = {{ API_TOKEN = '${{CANARY_ENV}}', FROM_FILE = '', FROM_EXEC = '' }}\n\
             [servers.leaky]\ncommand = {:?}\nargs = ['-u', {:?}, 'never']\n\
             [servers.leaky.env]\nAPI_TOKEN = '${{CANARY_ENV}}'\nFROM_FILE = '${{file:{}}}'\n\
             FROM_EXEC = '${{exec:printf \"%s-exec\" {CANARY}}}'\n\
             [servers.web]\nurl = 'http://127.0.0.1:{web}/mcp?api_key=${{CANARY_QUERY_KEY}}'\n\
             headers = {{ Authorization = 'Bearer ${{CANARY_HEADER}}' }}\n",
            python(),
            file("leaky.py"),
            file("dead"),
            python(),
            file("leaky.py"),
            file("secret").display(),
        );
        // The command line of `exec` is not secret, only its output is; so the canary must not be in the command line.
        let config = config.replace(&format!("%s-exec\" {CANARY}"), "%s7f3a-exec\" cnry");
        std::fs::write(file("toolbus.toml"), config).expect("written");
        let mut command = toolbus(folder.path());
        command.args(["up", "--listen", "127.0.0.1:0"]).env("TOOLBUS_LOG", "trace");
        for (name, kind) in [("CANARY_ENV", "env"), ("CANARY_HEADER", "header"), ("CANARY_QUERY_KEY", "query")] {
            command.env(name, format!("{CANARY}-{kind}"));
        }
        let log = std::fs::File::create(file("log")).expect("a log");
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let banner = Arc::new(Mutex::new(String::new()));
        let mut url = String::new();
        soon("the banner", async {
            while let Some(line) = lines.next_line().await.expect("text") {
                banner.lock().expect("no panic").push_str(&line);
                if let Some(address) = line.strip_prefix("listening on ") {
                    url = address.to_owned();
                    break;
                }
            }
        })
        .await;
        let rest = Arc::clone(&banner);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                rest.lock().expect("no panic").push_str(&line);
            }
        });
        Self { folder, child, url, banner }
    }

    fn address(&self) -> String {
        self.url.trim_start_matches("ws://").trim_end_matches("/bus").to_owned()
    }

    async fn run(&self, url: &str, args: &[&str]) -> CommandOutput {
        let mut command = toolbus(self.folder.path());
        command.args(args).env("TOOLBUS_BROKER", url);
        CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
    }
}

/// An HTTP MCP server that echoes the request headers in its responses.
async fn web() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_all(BufReader::new(stream)));
        }
    });
    port
}

async fn answer_all(mut stream: BufReader<TcpStream>) -> Option<()> {
    loop {
        let (mut length, mut head) = (0, String::new());
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
            head.push_str(line.trim());
            head.push(' ');
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, body) = web_answer(&request, &head);
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await.ok()?;
    }
}

fn web_answer(request: &Value, head: &str) -> (&'static str, String) {
    let result = match (request["method"].as_str(), request["params"]["name"].as_str()) {
        (Some("initialize"), _) => json!({"protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": head, "version": "1"}}),
        (Some("tools/list"), _) => {
            let tool = |name: &str| json!({"name": name, "description": head, "inputSchema": {"type": "object"}});
            json!({"tools": [tool("web_say"), tool("web_fail"), tool("web_deny")]})
        }
        (Some("tools/call"), Some("web_say")) => json!({"content": [{"type": "text", "text": head}]}),
        (Some("tools/call"), Some("web_deny")) => return ("401 Unauthorized", format!("{}{head}", "x".repeat(280))),
        (Some("tools/call"), _) => return ("500 Oh No", head.to_owned()),
        (Some("server/discover"), _) => {
            let error = json!({"code": -32601, "message": head});
            return ("200 OK", json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string());
        }
        _ => return ("202 Accepted", String::new()),
    };
    ("200 OK", json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string())
}

/// A proxy between worker and broker that records every byte sent to the worker.
async fn record_traffic(broker: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}/bus", listener.local_addr().expect("an address"));
    let captured = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&captured);
    tokio::spawn(async move {
        while let Ok((worker, _)) = listener.accept().await {
            let (broker, recorder) = (TcpStream::connect(&broker).await.expect("the broker"), Arc::clone(&recorder));
            let ((mut from_worker, mut to_worker), (mut from_broker, mut to_broker)) =
                (worker.into_split(), broker.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_worker, &mut to_broker).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from_broker.read(&mut buffer).await {
                    recorder.lock().expect("no panic").extend_from_slice(&buffer[..count]);
                    if to_worker.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, captured)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the broker");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    soon("a page", stream.read_to_string(&mut answer)).await.ok();
    answer
}

#[track_caller]
fn assert_absent(source: &str, bytes: &[u8], canary: &str) {
    let found = bytes.windows(canary.len()).position(|window| window == canary.as_bytes());
    if let Some(at) = found {
        let around = &bytes[at.saturating_sub(200)..bytes.len().min(at + 200)];
        panic!("a secret leaked into {source}: …{}…", String::from_utf8_lossy(around));
    }
}

#[tokio::test]
async fn secrets_leak_into_no_log_file_page_output_or_message() {
    let mut service = LeakyService::start(web().await).await;
    let added = service.run(&service.url, &["agent", "add", "bob", "--role", "worker"]).await;
    let token = added.out.split_whitespace().find(|word| word.starts_with("tb_")).expect("a token").to_owned();
    let secret = token.rsplit('_').next().expect("a secret part").to_owned();
    let token_file = service.folder.path().join("bob.token");
    std::fs::write(&token_file, &token).expect("written");
    let token_file = token_file.display().to_string();
    let (wire, captured) = record_traffic(service.address()).await;

    let mut outputs: Vec<(String, CommandOutput)> = Vec::new();
    soon("the tools", async {
        loop {
            let output = service.run(&wire, &["tools", "--json", "--token-file", &token_file]).await;
            if ["\"web_say\"", "\"noise\"", "\"shared_die\""].iter().all(|tool| output.out.contains(tool)) {
                break;
            }
        }
    })
    .await;
    for tool in ["say", "fail", "noise", "web_say", "web_fail", "web_deny", "die", "say"] {
        let output = service.run(&wire, &["call", tool, "--token-file", &token_file]).await;
        if matches!(tool, "say" | "fail" | "web_say" | "web_fail") {
            assert!(
                format!("{}{}", output.out, output.err).contains("[redacted]"),
                "{tool}: {} {}",
                output.out,
                output.err
            );
        }
        outputs.push((tool.to_owned(), output));
    }
    // The manifest contains the last stderr lines of a server that is down.
    std::fs::write(service.folder.path().join("dead"), "").expect("written");
    outputs.push(("shared_die".into(), service.run(&wire, &["call", "shared_die", "--token-file", &token_file]).await));
    soon("the stderr lines in the manifest", async {
        loop {
            let output = service.run(&wire, &["tools", "--json", "--token-file", &token_file]).await;
            let is_reported = output.out.contains("not any more");
            outputs.push(("tools while a server is down".into(), output));
            if is_reported {
                break;
            }
        }
    })
    .await;
    // An invalid token must not leak either.
    let bad = service.folder.path().join("bad.token");
    std::fs::write(&bad, format!("{token}x{CANARY}-token")).expect("written");
    outputs
        .push(("a bad token".into(), service.run(&wire, &["tools", "--token-file", &bad.display().to_string()]).await));
    for args in [
        &["tools", "--json", "--token-file", &token_file][..],
        &["audit", "tail", "-n", "1000", "--json"],
        &["audit", "verify"],
        &["pin", "list", "--json"],
        &["pin", "diff"],
        &["approvals"],
        &["ps", "--json"],
        &["agent", "list"],
    ] {
        outputs.push((args.join(" "), service.run(&service.url, args).await));
    }
    let mut pages = Vec::new();
    for path in ["/healthz", "/readyz", "/metrics", "/", "/mcp", "/status"] {
        pages.push((path, get(&service.address(), path).await));
    }
    let pid = service.child.id().expect("it runs").to_string();
    std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    soon("the end", service.child.wait()).await.expect("it ends");

    for canary in [CANARY, &secret] {
        for (name, output) in &outputs {
            assert_absent(name, output.out.as_bytes(), canary);
            assert_absent(name, output.err.as_bytes(), canary);
        }
        for (path, page) in &pages {
            assert_absent(path, page.as_bytes(), canary);
        }
        for file in files(&service.folder.path().join("data")) {
            assert_absent(&file.display().to_string(), &std::fs::read(&file).unwrap_or_default(), canary);
        }
        assert_absent("the log", &std::fs::read(service.folder.path().join("log")).expect("a log"), canary);
        assert_absent("the output", service.banner.lock().expect("no panic").as_bytes(), canary);
        assert_absent("the bytes sent to a worker", &captured.lock().expect("no panic"), canary);
    }
    assert!(captured.lock().expect("no panic").len() > 1000, "nothing was recorded");
}
