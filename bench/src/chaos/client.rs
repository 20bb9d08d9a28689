//! A stock MCP client with its worker process. It keeps several calls in flight; when the process dies it starts a new one
//! and makes the calls that have no answer again, with the same arguments. That is all it knows of crashes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    sync::{mpsc, watch},
};

use super::{
    answer::{Answer, Outcome},
    dice::Dice,
    keeper::{Kill, down},
    recovery::Recoveries,
    site::{DEADLINE_SECONDS, Site, Tool},
    tally::{Record, Tally},
};

/// A call without an answer for so long after it was last made is lost: its deadline is well over.
const PATIENCE: Duration = Duration::from_secs(DEADLINE_SECONDS + 20);
/// A session that is not open after so long is given up, as clients do.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Between an answer and the next call.
const PAUSE_MS: (u64, u64) = (0, 20);
/// Before a process that died is started again.
const DOWN_MS: (u64, u64) = (0, 200);

pub struct Client {
    pub number: usize,
    pub site: Arc<Site>,
    pub in_flight: usize,
    pub dice: Dice,
    pub kills: mpsc::Receiver<Kill>,
    /// True when no more calls are to be made.
    pub enough: watch::Receiver<bool>,
    pub recoveries: Arc<Recoveries>,
    pub tally: Arc<Tally>,
}

/// A call without an answer.
struct Waiting {
    record: usize,
    tool: Tool,
    /// When it was last made, and under which JSON-RPC id of the session.
    made: Option<(Instant, u64)>,
}

/// The client's calls over all its sessions.
struct Book {
    records: Vec<Record>,
    waiting: Vec<Waiting>,
    /// When the next calls are due.
    due: Vec<Instant>,
}

/// One life of a worker process.
pub struct Session {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    modern: bool,
    open: bool,
    began: Instant,
    next_id: u64,
    /// Which record each JSON-RPC id stands for, also after its answer.
    ids: HashMap<u64, usize>,
}

impl Client {
    /// Calls until it is enough and every call is answered or lost.
    pub async fn run(mut self) -> anyhow::Result<Vec<Record>> {
        let due = vec![Instant::now(); self.in_flight];
        let mut book = Book { records: Vec::new(), waiting: Vec::new(), due };
        loop {
            let mut session = Session::start(&self.site, self.number)?;
            let drained = self.session(&mut session, &mut book).await;
            session.end().await;
            if drained {
                return Ok(book.records);
            }
            let pause = self.dice.millis(DOWN_MS.0, DOWN_MS.1);
            down(pause, &mut self.kills).await;
        }
    }

    /// One life of the worker process. True if there is nothing left to do.
    async fn session(&mut self, session: &mut Session, book: &mut Book) -> bool {
        book.waiting.iter_mut().for_each(|waiting| waiting.made = None);
        if session.greet().await.is_err() {
            return false;
        }
        let mut killed = false;
        loop {
            let enough = *self.enough.borrow();
            if enough && book.waiting.is_empty() {
                return true;
            }
            // What a killed process had written is still read: the client got that.
            if !killed && self.make_calls(session, book, enough).await.is_err() {
                return false;
            }
            tokio::select! {
                line = session.lines.next_line() => match line {
                    Ok(Some(line)) => self.take(session, book, &line).await,
                    _ => return false,
                },
                Some(kill) = self.kills.recv() => {
                    killed = true;
                    kill.send(session.child.start_kill().is_ok()).ok();
                }
                () = tokio::time::sleep_until(book.next_look(enough).into()) => {}
                _ = self.enough.changed(), if !enough => {}
            }
            book.give_up_the_lost();
            if !session.open && session.began.elapsed() > OPEN_LIMIT {
                self.tally.note("sessions that did not open");
                return false;
            }
        }
    }

    /// Makes what is due, and again what the last process took with it.
    async fn make_calls(&mut self, session: &mut Session, book: &mut Book, enough: bool) -> anyhow::Result<()> {
        if !session.open {
            return Ok(());
        }
        let now = Instant::now();
        let all_due = book.due.len();
        book.due.retain(|due| enough || *due > now);
        let due = if enough { 0 } else { all_due - book.due.len() };
        for _ in 0..due {
            let tools = self.site.tools();
            let tool = tools[self.dice.below(tools.len() as u64) as usize];
            book.records.push(Record::new(tool));
            book.waiting.push(Waiting { record: book.records.len() - 1, tool, made: None });
        }
        for waiting in book.waiting.iter_mut().filter(|waiting| waiting.made.is_none()) {
            let id = session.call(waiting.tool, &call_id(self.number, waiting.record), waiting.record).await?;
            waiting.made = Some((Instant::now(), id));
            let record = &mut book.records[waiting.record];
            record.made += 1;
            if record.made > 1 {
                self.recoveries.tell(&format!("{} is made again", call_id(self.number, waiting.record)));
            }
        }
        Ok(())
    }

    async fn take(&mut self, session: &mut Session, book: &mut Book, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            self.tally.note("lines that are not JSON");
            return;
        };
        let Some(id) = message["id"].as_u64() else { return };
        if message.get("method").is_some() {
            return session.send(&json!({"jsonrpc": "2.0", "id": id, "result": {}})).await.unwrap_or_default();
        }
        if id == 0 {
            if message.get("error").is_some() || session.ready().await.is_err() {
                self.tally.note("sessions that did not open");
                session.child.start_kill().ok();
            }
            return;
        }
        let Some(&record) = session.ids.get(&id) else { return };
        let is_this = |waiting: &Waiting| waiting.made.is_some_and(|(_, made)| made == id);
        let Some(place) = book.waiting.iter().position(is_this) else {
            book.records[record].answers += 1;
            return;
        };
        book.waiting.swap_remove(place);
        book.due.push(Instant::now() + self.dice.millis(PAUSE_MS.0, PAUSE_MS.1));
        let answer = Answer::read(&message, &call_id(self.number, record));
        if answer.outcome == Outcome::Result {
            self.recoveries.succeeded(self.number);
        }
        self.tally.answered(&answer);
        book.records[record].answers += 1;
        book.records[record].answer = Some(answer);
    }
}

impl Book {
    fn next_look(&self, enough: bool) -> Instant {
        let lost = self.waiting.iter().filter_map(|waiting| Some(waiting.made?.0 + PATIENCE));
        let due = self.due.iter().copied().filter(|_| !enough);
        lost.chain(due).min().unwrap_or_else(|| Instant::now() + OPEN_LIMIT).min(Instant::now() + OPEN_LIMIT)
    }

    /// They stay without an answer in the records.
    fn give_up_the_lost(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.made.is_none_or(|(made, _)| made.elapsed() < PATIENCE));
        self.due.extend((self.waiting.len()..before).map(|_| Instant::now()));
    }
}

impl Session {
    pub fn start(site: &Site, number: usize) -> anyhow::Result<Self> {
        let mut child = site.worker(number)?.spawn().context("start a worker")?;
        let input = child.stdin.take().context("stdin is piped")?;
        let lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
        // Both eras of MCP, side by side.
        let modern = number.is_multiple_of(2);
        let began = Instant::now();
        Ok(Self { child, input, lines, modern, open: modern, began, next_id: 1, ids: HashMap::new() })
    }

    pub async fn end(mut self) {
        self.child.kill().await.ok();
    }

    /// One call in a session of the modern era, and its answer.
    pub async fn ask(&mut self, tool: Tool, call: &str) -> anyhow::Result<Answer> {
        let id = self.call(tool, call, 0).await?;
        loop {
            let line = self.lines.next_line().await?.context("the worker ended")?;
            let message: Value = serde_json::from_str(&line).context("read an answer")?;
            if message["id"] == id && message.get("method").is_none() {
                return Ok(Answer::read(&message, call));
            }
        }
    }

    async fn greet(&mut self) -> anyhow::Result<()> {
        if self.modern {
            return Ok(());
        }
        let client = json!({"name": "chaos", "version": "1.0.0"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        self.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        self.open = true;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await
    }

    async fn call(&mut self, tool: Tool, call: &str, record: usize) -> anyhow::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let mut params = json!({"name": tool.name(), "arguments": {"id": call}});
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
        tokio::time::timeout(WRITE_LIMIT, writing).await.context("the worker does not read")??;
        Ok(())
    }
}

pub fn call_id(worker: usize, record: usize) -> String {
    format!("w{worker}-{record}")
}
