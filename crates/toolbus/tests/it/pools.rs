//! Two hosts of a pool as processes: killed, paused and stopped with calls in progress and queued, while a tool records each
//! effect at the host that ran it.

use crate::mcp_client::StdioClient;
use crate::support::{BrokerProcess, Cutter, soon};
use crate::up::toolbus;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Child;

const POOL: &str = "[hosts.one]\npool = 'render'\n[hosts.two]\npool = 'render'\n";

struct Fixture {
    folder: TempDir,
    broker: BrokerProcess,
    hosts: BTreeMap<&'static str, Child>,
    /// Settings of the server.
    settings: &'static str,
}

impl Fixture {
    async fn start(settings: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("toolbus.toml"), POOL).expect("the folder is writable");
        let mut command = toolbus(folder.path());
        command.args(["broker", "--listen", "127.0.0.1:0"]);
        let broker = BrokerProcess::spawn(command).await;
        let mut fixture = Self { folder, broker, hosts: BTreeMap::new(), settings };
        for name in ["one", "two", "three"] {
            fixture.run(&["agent", "add", name, "--host", "--token-file", &format!("{name}.token")]).await;
        }
        fixture.start_host("one");
        fixture.start_host("two");
        fixture.until("both hosts serve the tool", |ps| ps.matches("(pool render)  online").count() == 2).await;
        fixture.until_tools("act ", "render (pool of 2)").await;
        fixture
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn start_host(&mut self, name: &'static str) {
        self.start_host_via(name, &self.broker.url());
    }

    fn start_host_via(&mut self, name: &'static str, url: &str) {
        let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/effects.py");
        let (effects, settings) = (self.path().join(format!("effects-{name}")), self.settings);
        let config = format!(
            "[servers.effects]\ncommand = 'python3'\nargs = ['{server}', '{}']\nsession = 'shared'\n{settings}",
            effects.display()
        );
        std::fs::write(self.path().join(format!("{name}.toml")), config).expect("the folder is writable");
        let mut host = toolbus(self.path());
        host.args(["host", "--config", &format!("{name}.toml"), "--broker", url, "--pool", "render"]);
        host.args(["--token-file", &format!("{name}.token"), "--state", &format!("state-{name}")]);
        let log = std::fs::File::create(self.path().join(format!("{name}.log"))).expect("the folder is writable");
        let child = host.stdout(Stdio::null()).stderr(log).spawn().expect("the binary starts");
        self.hosts.insert(name, child);
    }

    async fn kill(&mut self, name: &str) {
        self.hosts.get_mut(name).expect("a host").kill().await.expect("it was running");
    }

    async fn signal(&self, name: &str, signal: &str) {
        let pid = self.hosts[name].id().expect("it runs").to_string();
        let sent = tokio::process::Command::new("kill").args([signal, &pid]).status().await.expect("kill starts");
        assert!(sent.success());
    }

    async fn ended(&mut self, name: &str) {
        let host = self.hosts.get_mut(name).expect("a host");
        soon("the host ends", host.wait()).await.expect("it can be waited for");
    }

    async fn run(&self, args: &[&str]) -> String {
        let output = toolbus(self.path()).args(args).output().await.expect("the binary starts");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    async fn ps(&self) -> String {
        self.run(&["ps", "--broker", &self.broker.url()]).await
    }

    async fn until(&self, what: &str, right: impl Fn(&str) -> bool) {
        soon(what, async {
            while !right(&self.ps().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    async fn until_tools(&self, one: &str, other: &str) {
        soon("the tool is listed", async {
            loop {
                let tools = self.run(&["tools", "--broker", &self.broker.url()]).await;
                if tools.contains(one) && tools.contains(other) {
                    return;
                }
            }
        })
        .await;
    }

    fn worker(&self, grace: &str) -> Worker {
        let token = self.path().join("data/toolbus/token");
        let client = StdioClient::with_args(&self.broker.url(), &token, &["--pool-grace", grace]);
        Worker { client, answers: BTreeMap::new() }
    }

    /// The hosts that ran the call, each once per effect.
    fn effects_of(&self, id: &str) -> Vec<&'static str> {
        let at = |name: &'static str| {
            let effects = std::fs::read_to_string(self.path().join(format!("effects-{name}"))).unwrap_or_default();
            effects.lines().filter(|line| *line == id).map(|_| name).collect::<Vec<_>>()
        };
        ["one", "two"].into_iter().flat_map(at).collect()
    }

    async fn until_started(&self, ids: &[String], host: &str) -> String {
        soon("a call has started", async {
            loop {
                if let Some(id) = ids.iter().find(|id| self.effects_of(id).contains(&host)) {
                    return id.clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }
}

/// A client with several calls in flight.
struct Worker {
    client: StdioClient,
    answers: BTreeMap<String, Vec<Value>>,
}

impl Worker {
    async fn send(&mut self, id: &str, seconds: f64) {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"}});
        let params = json!({"name": "act", "arguments": {"id": id, "seconds": seconds}, "_meta": meta});
        self.client
            .send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string())
            .await;
    }

    async fn send_all(&mut self, count: usize, seconds: f64) -> Vec<String> {
        let ids: Vec<String> = (0..count).map(|number| format!("call-{number}")).collect();
        for id in &ids {
            self.send(id, seconds).await;
        }
        ids
    }

    /// Waits until each call has an answer.
    async fn answers(&mut self, ids: &[String]) {
        soon("the answers", async {
            while ids.iter().any(|id| !self.answers.contains_key(id)) {
                let message: Value = serde_json::from_str(&self.client.next_line().await).expect("JSON");
                if let Some(id) = message["id"].as_str() {
                    self.answers.entry(id.to_owned()).or_default().push(message);
                }
            }
        })
        .await;
    }

    /// `did` for a result, or the code of the error.
    fn word(&self, id: &str) -> String {
        let [answer] = &self.answers[id][..] else { panic!("{id}: {:?}", self.answers[id]) };
        match &answer["error"]["data"]["code"] {
            Value::String(code) => code.clone(),
            _ => answer["result"]["content"][0]["text"].as_str().unwrap_or_default().replace(id, "").trim().to_owned(),
        }
    }
}

/// Each call has one answer, which is true, and no call has two effects.
#[track_caller]
fn check_truth(fixture: &Fixture, worker: &Worker, ids: &[String]) {
    for id in ids {
        let effects = fixture.effects_of(id);
        match worker.word(id).as_str() {
            "did" => assert_eq!(effects.len(), 1, "{id}: {effects:?}"),
            "TB0420" => assert!(effects.len() <= 1, "{id}: {effects:?}"),
            other => panic!("{id}: {other}: {:?}", worker.answers[id]),
        }
    }
}

fn count(worker: &Worker, ids: &[String], word: &str) -> usize {
    ids.iter().filter(|id| worker.word(id) == word).count()
}

#[tokio::test]
async fn calls_spread_and_a_host_that_no_rule_allows_is_kept_out() {
    let mut fixture = Fixture::start("").await;
    let mut worker = fixture.worker("15s");
    let ids = worker.send_all(10, 0.5).await;
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    let at_one = ids.iter().filter(|id| fixture.effects_of(id) == ["one"]).count();
    assert_eq!(at_one, 5, "half of the calls in progress");
    fixture.start_host("three");
    fixture.until("it is refused", |ps| ps.contains("not a member of pool render")).await;
    fixture.until("its names are held back", |ps| ps.contains("pool render offered it first")).await;
    let json: Value =
        serde_json::from_str(&fixture.run(&["ps", "--json", "--broker", &fixture.broker.url()]).await).expect("JSON");
    assert_eq!(json["pools"], json!([{"name": "render", "hosts": ["one", "two"], "problems": []}]));
    let tools = fixture.run(&["tools", "--broker", &fixture.broker.url()]).await;
    assert_eq!(tools.lines().filter(|line| line.starts_with("act ")).count(), 1, "{tools}");
    let called = ["call", "act", r#"{"id": "by-command", "seconds": 0}"#, "--broker", &fixture.broker.url()];
    assert!(fixture.run(&called).await.contains("did by-command"));
}

#[tokio::test]
async fn calls_of_a_killed_member_have_one_effect_and_a_true_answer() {
    let mut fixture = Fixture::start("max_concurrency = 1\n").await;
    let mut worker = fixture.worker("1s");
    let ids = worker.send_all(10, 0.6).await;
    let started = fixture.until_started(&ids, "one").await;
    fixture.kill("one").await;
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    assert_eq!(worker.word(&started), "TB0420", "only its journal knows");
    assert!(count(&worker, &ids, "did") >= 5, "those of the other member");
    // The member is back: it gets none of them again.
    fixture.start_host("one");
    fixture.until("it is back", |ps| ps.matches("(pool render)  online").count() == 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    check_truth(&fixture, &worker, &ids);
    assert_eq!(ids.iter().filter(|id| fixture.effects_of(id) == ["one"]).count(), 1);
}

#[tokio::test]
async fn a_killed_member_that_comes_back_in_time_runs_what_it_had_not_begun() {
    let mut fixture = Fixture::start("max_concurrency = 1\n").await;
    let mut worker = fixture.worker("60s");
    let ids = worker.send_all(8, 0.4).await;
    let started = fixture.until_started(&ids, "one").await;
    fixture.kill("one").await;
    fixture.start_host("one");
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    assert_eq!((worker.word(&started).as_str(), count(&worker, &ids, "did")), ("TB0420", 7));
}

#[tokio::test]
async fn replay_safe_calls_of_a_killed_member_run_at_another_one() {
    let mut fixture = Fixture::start("max_concurrency = 1\nreplay = 'safe'\n").await;
    let mut worker = fixture.worker("1s");
    let ids = worker.send_all(6, 0.3).await;
    fixture.until_started(&ids, "one").await;
    fixture.kill("one").await;
    worker.answers(&ids).await;
    assert_eq!(count(&worker, &ids, "did"), 6);
}

#[tokio::test]
async fn calls_wait_while_all_members_are_away_and_run_at_the_first_that_is_back() {
    let mut fixture = Fixture::start("").await;
    let mut worker = fixture.worker("60s");
    fixture.kill("one").await;
    fixture.kill("two").await;
    fixture.until("both are away", |ps| ps.matches("(pool render)  away").count() == 2).await;
    let ids = worker.send_all(6, 0.0).await;
    // They are queued for the member that left last.
    fixture
        .until("they are queued", |ps| ps.lines().any(|line| line.starts_with("two ") && line.contains("  6  ")))
        .await;
    fixture.start_host("one");
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    assert!(ids.iter().all(|id| fixture.effects_of(id) == ["one"]), "moved at once, although the grace is long");
}

#[tokio::test]
async fn a_paused_member_that_goes_on_repeats_nothing() {
    let mut fixture = Fixture::start("max_concurrency = 1\n").await;
    let network = Cutter::start(fixture.broker.address).await;
    fixture.kill("one").await;
    fixture.until("it is away", |ps| ps.contains("(pool render)  away")).await;
    fixture.start_host_via("one", &network.url());
    fixture.until("it is back", |ps| ps.matches("(pool render)  online").count() == 2).await;
    soon("its server is up", async {
        while fixture.run(&["tools", "--broker", &fixture.broker.url()]).await.contains("starting") {}
    })
    .await;
    let mut worker = fixture.worker("1s");
    let mut ids = worker.send_all(6, 1.0).await;
    fixture.until_started(&ids, "one").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    fixture.signal("one", "-STOP").await;
    // The broker pushes these to a host that does not read them.
    for number in 0..6 {
        ids.push(format!("paused-{number}"));
        worker.send(&ids[ids.len() - 1], 0.1).await;
    }
    // The first one waits until the host does not say whether it knows the call.
    tokio::time::sleep(Duration::from_millis(2_700)).await;
    network.cut();
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    let words: Vec<_> = ids.iter().map(|id| (id, worker.word(id), fixture.effects_of(id))).collect();
    assert!(count(&worker, &ids, "TB0420") > 3, "those that the paused member received: {words:?}");
    fixture.signal("one", "-CONT").await;
    fixture.until("it is back", |ps| ps.matches("(pool render)  online").count() == 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    check_truth(&fixture, &worker, &ids);
}

#[tokio::test]
async fn a_stopped_member_lets_its_call_end_and_hands_back_the_others() {
    let mut fixture = Fixture::start("max_concurrency = 1\n").await;
    let mut worker = fixture.worker("60s");
    let ids = worker.send_all(8, 0.5).await;
    let started = fixture.until_started(&ids, "one").await;
    fixture.signal("one", "-TERM").await;
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    assert_eq!(count(&worker, &ids, "did"), 8);
    assert_eq!(fixture.effects_of(&started), ["one"]);
    assert_eq!(ids.iter().filter(|id| fixture.effects_of(id) == ["one"]).count(), 1);
    fixture.ended("one").await;
}

#[tokio::test]
async fn a_rolling_restart_fails_no_call() {
    let mut fixture = Fixture::start("max_concurrency = 2\n").await;
    let mut worker = fixture.worker("30s");
    let mut ids = Vec::new();
    for (round, name) in ["one", "two", "one", "two"].into_iter().enumerate() {
        for number in 0..12 {
            ids.push(format!("round-{round}-{number}"));
            worker.send(&ids[ids.len() - 1], 0.1).await;
        }
        fixture.signal(name, "-TERM").await;
        fixture.ended(name).await;
        fixture.start_host(name);
        fixture.until("it is back", |ps| ps.matches("(pool render)  online").count() == 2).await;
    }
    worker.answers(&ids).await;
    check_truth(&fixture, &worker, &ids);
    assert_eq!(count(&worker, &ids, "did"), ids.len());
}

#[tokio::test]
async fn a_call_that_is_repeated_through_another_worker_joins_at_its_member() {
    let mut fixture = Fixture::start("").await;
    for round in 0..4 {
        let id = format!("repeated-{round}");
        let mut first = fixture.worker("1s");
        first.send(&id, 1.0).await;
        let host = soon("it starts", async {
            loop {
                if let [host] = fixture.effects_of(&id)[..] {
                    return host;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        first.client.kill().await;
        let mut second = fixture.worker("1s");
        second.send(&id, 1.0).await;
        let ids = [id.clone()];
        if round == 3 {
            // The member that has the call is killed as well: no other member may run it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            fixture.kill(host).await;
            let mut third = fixture.worker("1s");
            third.send(&id, 1.0).await;
            third.answers(&ids).await;
            assert_eq!(third.word(&id), "TB0420");
        }
        second.answers(&ids).await;
        assert_eq!(second.word(&id), if round == 3 { "TB0420" } else { "did" });
        assert_eq!(fixture.effects_of(&id), [host]);
    }
}
