//! Nothing is lost on the way: a corpus of requests, results, errors and notifications goes through toolbus, and what
//! comes out is the text that went in, in both eras, over stdio and over HTTP.

use crate::mcp_client::{Answered, HttpClient, McpClient, StdioClient};
use crate::mcp_process::{UpProcess, python};
use crate::support::soon;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Corpus {
    lists: std::collections::BTreeMap<String, Vec<String>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    method: String,
    params: String,
    #[serde(default)]
    notifications: Vec<String>,
    /// `"result":…` or `"error":…` as the server writes it.
    answer: String,
    modern: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Era {
    Legacy,
    Modern,
}

const MODERN_META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"fidelity","version":"1.0","x-unknown":1.0}"#;
const INITIALIZE: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"experimental":{"x":{"n":1.0}}},"clientInfo":{"name":"fidelity","version":"1.0"}}"#;

#[tokio::test]
async fn legacy_over_stdio_is_the_same_text() {
    through_stdio(Era::Legacy).await;
}

#[tokio::test]
async fn modern_over_stdio_is_the_same_text() {
    through_stdio(Era::Modern).await;
}

#[tokio::test]
async fn legacy_over_http_is_the_same_text() {
    through_http(Era::Legacy).await;
}

#[tokio::test]
async fn modern_over_http_is_the_same_text() {
    through_http(Era::Modern).await;
}

async fn through_stdio(era: Era) {
    let up = hosting_the_corpus().await;
    let mut client = StdioClient::start(&up).await;
    play(&mut client, era, &up).await;
}

async fn through_http(era: Era) {
    let up = hosting_the_corpus().await;
    let mut client = HttpClient::new(&up);
    play(&mut client, era, &up).await;
}

fn corpus_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

/// The server leaves what it received in a file: its stderr is the host's business.
async fn hosting_the_corpus() -> UpProcess {
    let script = "exec \"$0\" \"$1\" \"$2\" 2>>\"$3\"";
    UpProcess::hosting(|folder| {
        let received = folder.join("received");
        let argv = ["-c".into(), script.into(), python()];
        let files = [corpus_file("server.py"), corpus_file("corpus.json"), received];
        let args: Vec<String> = argv.into_iter().chain(files.iter().map(|file| file.display().to_string())).collect();
        serde_json::json!({"mcpServers": {"corpus": {"command": "sh", "args": args}}})
    })
    .await
}

async fn play(client: &mut impl McpClient, era: Era, up: &UpProcess) {
    let corpus: Corpus =
        serde_json::from_slice(&std::fs::read(corpus_file("corpus.json")).expect("the corpus")).expect("it is JSON");
    if era == Era::Legacy {
        soon("initialize", client.request("initialize", INITIALIZE)).await;
        soon("initialized", client.notify("notifications/initialized", "{}")).await;
    }
    for (kind, items) in &corpus.lists {
        let method = match kind.as_str() {
            "resourceTemplates" => "resources/templates/list".to_owned(),
            kind => format!("{kind}/list"),
        };
        let answered = soon(&method, client.request(&method, &with_meta("{}", era))).await;
        assert_eq!(member(&answered.response, "result", kind), format!("[{}]", items.join(",")), "{method}");
        assert_eq!(member(&answered.response, "result", "x-list"), "1.50");
    }
    for case in &corpus.cases {
        let params = with_meta(&case.params, era);
        let Answered { response, notifications } = soon(&case.name, client.request(&case.method, &params)).await;
        let expected = match (era, &case.modern) {
            (Era::Modern, Some(modern)) => modern,
            _ => &case.answer,
        };
        let outcome = expected.split_once(':').expect("a member").1;
        let field = if expected.starts_with("\"error\"") { "error" } else { "result" };
        assert_eq!(top(&response, field).as_deref(), Some(outcome), "{}: what the client got", case.name);
        let sent: Vec<String> = case.notifications.iter().map(|note| note.replace("$TOKEN", &token(&params))).collect();
        assert_eq!(params_of(&notifications), params_of(&sent), "{}: notifications before the answer", case.name);
        let received = up.received();
        let line = received.lines().rfind(|line| line.starts_with(&format!("received {} ", case.name)));
        let received = line.and_then(|line| line.splitn(3, ' ').nth(2)).expect("the server wrote down what it got");
        assert_eq!(received, params, "{}: what the server got", case.name);
    }
}

/// In the modern era every request says who asks; the corpus says the rest.
fn with_meta(params: &str, era: Era) -> String {
    match (era, params) {
        (Era::Legacy, params) => params.to_owned(),
        (Era::Modern, "{}") => format!("{{\"_meta\":{{{MODERN_META}}}}}"),
        (Era::Modern, params) => match params.split_once("\"_meta\":{") {
            Some((before, after)) => format!("{before}\"_meta\":{{{MODERN_META},{after}"),
            None => format!("{},\"_meta\":{{{MODERN_META}}}}}", &params[..params.len() - 1]),
        },
    }
}

fn token(params: &str) -> String {
    let meta = inner(params, "_meta").unwrap_or_default();
    inner(&meta, "progressToken").unwrap_or_else(|| "0".into())
}

fn params_of(messages: &[String]) -> Vec<Option<String>> {
    messages.iter().map(|message| top(message, "params")).collect()
}

fn member(message: &str, outer: &str, name: &str) -> String {
    inner(&top(message, outer).unwrap_or_else(|| panic!("no {outer} in {message}")), name).expect("the member is there")
}

fn top(message: &str, name: &str) -> Option<String> {
    inner(message, name)
}

/// A member's own text.
fn inner(object: &str, name: &str) -> Option<String> {
    let members: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    members.get(name).map(|value| value.get().to_owned())
}
