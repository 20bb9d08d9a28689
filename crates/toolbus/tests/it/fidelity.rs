//! A corpus of requests, results, errors and notifications passes through toolbus byte for byte, in both eras, over
//! stdio and over HTTP. If client and server speak different eras, only the members that exist in one era may differ.

use crate::mcp_client::{Answered, HttpClient, McpClient, StdioClient};
use crate::mcp_process::{UpProcess, python};
use crate::support::soon;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::PathBuf;
use toolbus_mcp::Members;

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

impl Era {
    /// The era in which the host talks to such a server.
    fn towards(server: &str, client: Self) -> Self {
        match server {
            "legacy" => Self::Legacy,
            "modern" => Self::Modern,
            _ => client,
        }
    }
}

const MODERN_META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"fidelity","version":"1.0","x-unknown":1.0}"#;
const INITIALIZE: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"experimental":{"x":{"n":1.0}}},"clientInfo":{"name":"fidelity","version":"1.0"}}"#;

#[tokio::test]
async fn legacy_over_stdio_is_unchanged() {
    through_stdio(Era::Legacy, "both").await;
}

#[tokio::test]
async fn modern_over_stdio_is_unchanged() {
    through_stdio(Era::Modern, "both").await;
}

#[tokio::test]
async fn legacy_over_http_is_unchanged() {
    through_http(Era::Legacy, "both").await;
}

#[tokio::test]
async fn modern_over_http_is_unchanged() {
    through_http(Era::Modern, "both").await;
}

#[tokio::test]
async fn legacy_server_with_modern_client_is_unchanged() {
    through_stdio(Era::Modern, "legacy").await;
    through_http(Era::Modern, "legacy").await;
}

#[tokio::test]
async fn modern_server_with_legacy_client_is_unchanged() {
    through_stdio(Era::Legacy, "modern").await;
    through_http(Era::Legacy, "modern").await;
}

async fn through_stdio(client: Era, server: &str) {
    let up = host_corpus(server).await;
    CorpusRun { client, server: Era::towards(server, client), up: &up }.run(&mut StdioClient::start(&up).await).await;
}

async fn through_http(client: Era, server: &str) {
    let up = host_corpus(server).await;
    CorpusRun { client, server: Era::towards(server, client), up: &up }.run(&mut HttpClient::new(&up)).await;
}

fn corpus_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

/// Redirects the server's stderr, which records what it received, to a file, because the host consumes stderr.
async fn host_corpus(era: &str) -> UpProcess {
    let script = "exec \"$0\" \"$1\" \"$2\" \"$3\" 2>>\"$4\"";
    UpProcess::hosting(|folder| {
        let file = |path: PathBuf| path.display().to_string();
        let (server, corpus) = (file(corpus_file("server.py")), file(corpus_file("corpus.json")));
        let args = ["-c", script, &python(), &server, &corpus, era, &file(folder.join("received"))];
        serde_json::json!({"mcpServers": {"corpus": {"command": "sh", "args": args}}})
    })
    .await
}

/// Sends the whole corpus from one client to one server.
struct CorpusRun<'a> {
    client: Era,
    server: Era,
    up: &'a UpProcess,
}

impl CorpusRun<'_> {
    async fn run(&self, client: &mut impl McpClient) {
        let corpus: Corpus = serde_json::from_slice(&std::fs::read(corpus_file("corpus.json")).expect("the corpus"))
            .expect("it is JSON");
        if self.client == Era::Legacy {
            soon("initialize", client.request("initialize", INITIALIZE)).await;
            soon("initialized", client.notify("notifications/initialized", "{}")).await;
        }
        for (kind, items) in &corpus.lists {
            let method = match kind.as_str() {
                "resourceTemplates" => "resources/templates/list".to_owned(),
                kind => format!("{kind}/list"),
            };
            let answered = soon(&method, client.request(&method, &with_meta("{}", self.client))).await;
            assert_eq!(member(&answered.response, "result", kind), format!("[{}]", items.join(",")), "{method}");
            assert_eq!(member(&answered.response, "result", "x-list"), "1.50");
        }
        for case in &corpus.cases {
            self.check_case(case, client).await;
        }
    }

    async fn check_case(&self, case: &Case, client: &mut impl McpClient) {
        let params = with_meta(&case.params, self.client);
        let Answered { response, notifications } = soon(&case.name, client.request(&case.method, &params)).await;
        let expected = match (self.server, &case.modern) {
            (Era::Modern, Some(modern)) => modern,
            _ => &case.answer,
        };
        let outcome = expected.split_once(':').expect("a member").1;
        let field = if expected.starts_with("\"error\"") { "error" } else { "result" };
        let got = inner(&response, field).unwrap_or_else(|| panic!("{}: no {field} in {response}", case.name));
        self.check_same(&got, outcome, &format!("{}: at the client", case.name));

        let sent: Vec<String> = case.notifications.iter().map(|note| note.replace("$TOKEN", &token(&params))).collect();
        assert_eq!(params_of(&notifications), params_of(&sent), "{}: notifications before the answer", case.name);

        let received = self.up.received();
        let line = received.lines().rfind(|line| line.starts_with(&format!("received {} ", case.name)));
        let received = line.and_then(|line| line.splitn(3, ' ').nth(2)).expect("the server recorded the params");
        let received = match self.server {
            Era::Legacy => received.to_owned(),
            // All workers share one connection to a modern server, so the host replaces their progress tokens.
            Era::Modern => received.replace(&token_member(received), &token_member(&params)),
        };
        self.check_same(&received, &params, &format!("{}: at the server", case.name));
    }

    fn check_same(&self, got: &str, expected: &str, what: &str) {
        if self.client == self.server {
            assert_eq!(got, expected, "{what}");
        } else {
            assert_eq!(without_era(got), without_era(expected), "{what}");
        }
    }
}

/// The members in order, each as raw text, without those that exist in one era only.
fn without_era(object: &str) -> Vec<(String, String)> {
    let object = toolbus_mcp::Raw::parse(object).expect("JSON");
    let mut members = Vec::new();
    for (name, value) in Members::of(Some(&object)).expect("an object").iter() {
        match name {
            "resultType" | "ttlMs" | "cacheScope" => {}
            "_meta" => {
                members.extend(without_era(value.get()).into_iter().map(|(key, text)| (format!("_meta {key}"), text)))
            }
            name if name.starts_with("io.modelcontextprotocol/") => {}
            name => members.push((name.to_owned(), value.get().to_owned())),
        }
    }
    members
}

/// Adds the `_meta` that every modern request has to the params of the corpus.
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

fn token_member(params: &str) -> String {
    format!("\"progressToken\":{}", token(params))
}

fn params_of(messages: &[String]) -> Vec<Option<String>> {
    messages.iter().map(|message| inner(message, "params")).collect()
}

fn member(message: &str, outer: &str, name: &str) -> String {
    inner(&inner(message, outer).unwrap_or_else(|| panic!("no {outer} in {message}")), name)
        .expect("the member is there")
}

/// The raw text of a member.
fn inner(object: &str, name: &str) -> Option<String> {
    let members: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    members.get(name).map(|value| value.get().to_owned())
}
