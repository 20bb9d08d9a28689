//! A stock MCP client with its worker process. It keeps several calls in flight; when the process dies, it starts a new
//! one and repeats the unanswered calls with the same arguments. It has no other handling of crashes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    sync::{mpsc, watch},
};

use super::{
    DEADLINE_SECONDS, Tool, Workers,
    answer::{Answer, Outcome},
    recovery::Recoveries,
    rng::Rng,
    supervisor::{Blow, KillRequest, signal, stay_down},
    tally::{Record, Tally},
};

/// A call that is unanswered for this long after it was last sent is lost: its deadline is well past.
const LOST_AFTER: Duration = Duration::from_secs(DEADLINE_SECONDS + 20);
/// Handshake timeout, after which the client restarts its worker.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Downtime before a dead process is restarted.
const DOWN_MS: (u64, u64) = (0, 200);

pub struct Client {
    pub number: usize,
    pub workers: Arc<dyn Workers>,
    pub in_flight: usize,
    /// Milliseconds between an answer and the next call.
    pub pause: (u64, u64),
    pub rng: Rng,
    pub kills: mpsc::Receiver<KillRequest>,
    /// True once no new calls may be started.
    pub draining: watch::Receiver<bool>,
    pub recoveries: Arc<Recoveries>,
    pub tally: Arc<Tally>,
}

/// A call without an answer.
struct PendingCall {
    record: usize,
    tool: Tool,
    /// When it was sent in this session, and its JSON-RPC id there.
    sent: Option<(Instant, u64)>,
}

/// The client's calls over all its sessions.
struct Calls {
    records: Vec<Record>,
    pending: Vec<PendingCall>,
    /// Start times of the next calls.
    due: Vec<Instant>,
}

/// A running worker process.
pub struct Session {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    modern: bool,
    open: bool,
    started: Instant,
    next_id: u64,
    /// The record of each JSON-RPC id; kept after the answer, so that a second one is counted.
    ids: HashMap<u64, usize>,
}

impl Client {
    /// Makes calls until draining, then waits until every call is answered or lost.
    pub async fn run(mut self) -> anyhow::Result<Vec<Record>> {
        let due = vec![Instant::now(); self.in_flight];
        let mut calls = Calls { records: Vec::new(), pending: Vec::new(), due };
        loop {
            let mut session = Session::start(&*self.workers, self.number)?;
            let drained = self.run_session(&mut session, &mut calls).await;
            session.kill().await;
            if drained {
                return Ok(calls.records);
            }
            let pause = self.rng.millis(DOWN_MS.0, DOWN_MS.1);
            stay_down(pause, &mut self.kills).await;
        }
    }

    /// Runs until the worker process dies. Returns true if draining is complete.
    async fn run_session(&mut self, session: &mut Session, calls: &mut Calls) -> bool {
        calls.pending.iter_mut().for_each(|call| call.sent = None);
        if session.initialize().await.is_err() {
            return false;
        }
        let mut killed = false;
        loop {
            let draining = *self.draining.borrow();
            if draining && calls.pending.is_empty() {
                return true;
            }
            // Output of a killed process is still read: its client received it.
            if !killed && self.send_calls(session, calls, draining).await.is_err() {
                return false;
            }
            tokio::select! {
                line = session.lines.next_line() => match line {
                    Ok(Some(line)) => self.handle_line(session, calls, &line).await,
                    _ => return false,
                },
                Some(KillRequest { blow, hit }) = self.kills.recv() => {
                    killed = true;
                    let was_running = match blow {
                        Blow::Stop => signal(&session.child, Signal::TERM),
                        Blow::Kill | Blow::Pause(_) => session.child.start_kill().is_ok(),
                    };
                    hit.send(was_running).ok();
                }
                () = tokio::time::sleep_until(calls.next_wake_up(draining).into()) => {}
                _ = self.draining.changed(), if !draining => {}
            }
            calls.remove_lost();
            if !session.open && session.started.elapsed() > OPEN_LIMIT {
                self.tally.note("sessions that did not open");
                return false;
            }
        }
    }

    /// Sends the calls that are due, and repeats those that the last process left unanswered.
    async fn send_calls(&mut self, session: &mut Session, calls: &mut Calls, draining: bool) -> anyhow::Result<()> {
        if !session.open {
            return Ok(());
        }
        let now = Instant::now();
        let all_due = calls.due.len();
        calls.due.retain(|due| draining || *due > now);
        let due = if draining { 0 } else { all_due - calls.due.len() };
        for _ in 0..due {
            let tools = self.workers.tools();
            let tool = tools[self.rng.below(tools.len() as u64) as usize];
            calls.records.push(Record::new(tool));
            calls.pending.push(PendingCall { record: calls.records.len() - 1, tool, sent: None });
        }
        for call in calls.pending.iter_mut().filter(|call| call.sent.is_none()) {
            let id = session.call(call.tool, &call_id(self.number, call.record), call.record).await?;
            call.sent = Some((Instant::now(), id));
            let record = &mut calls.records[call.record];
            record.sent += 1;
            record.first_sent = record.first_sent.or(Some(Instant::now()));
            if record.sent > 1 {
                self.recoveries.log_event(&format!("{} is repeated", call_id(self.number, call.record)));
            }
        }
        Ok(())
    }

    async fn handle_line(&mut self, session: &mut Session, calls: &mut Calls, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            self.tally.note("lines that are not JSON");
            return;
        };
        let Some(id) = message["id"].as_u64() else { return };
        if message.get("method").is_some() {
            return session.send(&json!({"jsonrpc": "2.0", "id": id, "result": {}})).await.unwrap_or_default();
        }
        if id == 0 {
            if message.get("error").is_some() || session.initialized().await.is_err() {
                self.tally.note("sessions that did not open");
                session.child.start_kill().ok();
            }
            return;
        }
        let Some(&record) = session.ids.get(&id) else { return };
        let is_answered = |call: &PendingCall| call.sent.is_some_and(|(_, sent)| sent == id);
        let Some(index) = calls.pending.iter().position(is_answered) else {
            calls.records[record].answers += 1;
            return;
        };
        let first_sent = calls.records[record].first_sent;
        calls.pending.swap_remove(index);
        calls.due.push(Instant::now() + self.rng.millis(self.pause.0, self.pause.1));
        let answer = Answer::read(&message, &call_id(self.number, record));
        if answer.outcome == Outcome::Result {
            self.recoveries.succeeded(self.number, first_sent.unwrap_or_else(Instant::now));
        } else {
            let (id, code) = (call_id(self.number, record), answer.code.as_deref().unwrap_or_default());
            self.recoveries.log_event(&format!("{id} ended with {:?} {code}", answer.outcome));
        }
        self.tally.answered(&answer);
        calls.records[record].answers += 1;
        calls.records[record].answer = Some(answer);
        calls.records[record].answered = Some(Instant::now());
    }
}

impl Calls {
    fn next_wake_up(&self, draining: bool) -> Instant {
        let lost = self.pending.iter().filter_map(|call| Some(call.sent?.0 + LOST_AFTER));
        let due = self.due.iter().copied().filter(|_| !draining);
        lost.chain(due).min().unwrap_or_else(|| Instant::now() + OPEN_LIMIT).min(Instant::now() + OPEN_LIMIT)
    }

    /// Removes lost calls; their records stay without an answer.
    fn remove_lost(&mut self) {
        let before = self.pending.len();
        self.pending.retain(|call| call.sent.is_none_or(|(sent, _)| sent.elapsed() < LOST_AFTER));
        self.due.extend((self.pending.len()..before).map(|_| Instant::now()));
    }
}

impl Session {
    pub fn start(workers: &dyn Workers, number: usize) -> anyhow::Result<Self> {
        let mut child = workers.worker(number)?.spawn().context("start a worker")?;
        let input = child.stdin.take().context("stdin is piped")?;
        let lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
        // Clients alternate between the eras.
        let modern = number.is_multiple_of(2);
        let started = Instant::now();
        Ok(Self { child, input, lines, modern, open: modern, started, next_id: 1, ids: HashMap::new() })
    }

    pub async fn kill(mut self) {
        self.child.kill().await.ok();
    }

    /// Makes one call in a modern session and returns its answer.
    pub async fn ask(&mut self, tool: Tool, call: &str) -> anyhow::Result<Answer> {
        let id = self.call(tool, call, 0).await?;
        loop {
            let line = self.lines.next_line().await?.context("the worker exited")?;
            let message: Value = serde_json::from_str(&line).context("read an answer")?;
            if message["id"] == id && message.get("method").is_none() {
                return Ok(Answer::read(&message, call));
            }
        }
    }

    async fn initialize(&mut self) -> anyhow::Result<()> {
        if self.modern {
            return Ok(());
        }
        let client = json!({"name": "chaos", "version": "1.0.0"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        self.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await
    }

    async fn initialized(&mut self) -> anyhow::Result<()> {
        self.open = true;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await
    }

    async fn call(&mut self, tool: Tool, call: &str, record: usize) -> anyhow::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let mut params = json!({"name": tool.name, "arguments": {"id": call}});
        if self.modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "chaos", "version": "1.0.0"},
            });
        }
        self.ids.insert(id, record);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await?;
        Ok(id)
    }

    async fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        let line = format!("{message}\n");
        let writing = self.input.write_all(line.as_bytes());
        tokio::time::timeout(WRITE_LIMIT, writing).await.context("timed out writing to the worker")??;
        Ok(())
    }
}

pub fn call_id(worker: usize, record: usize) -> String {
    format!("w{worker}-{record}")
}
