//! A fake bus whose hosts are controlled by the test. Calls to an absent host are queued until it is back.

use super::soon;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{AdminRequest, HostEvent, HostReply, HostRequest, Id, Outcome, Rpc, RpcError, raw};
use toolbus_protocol::{Body, ErrorCode};
use toolbus_worker::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent, Waiting};

pub struct FakeBus {
    hosts: watch::Sender<Hosts>,
    calls: (mpsc::Sender<HostCall>, tokio::sync::Mutex<mpsc::Receiver<HostCall>>),
    admin: (mpsc::Sender<AdminCall>, tokio::sync::Mutex<mpsc::Receiver<AdminCall>>),
    waiting: Mutex<Vec<HostCall>>,
    detached: Arc<Mutex<Vec<String>>>,
    sent: Mutex<Vec<(String, HostRequest)>>,
    sent_changed: Notify,
    sessions: Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>,
    /// Ids of calls that were withdrawn.
    withdrawn: Mutex<Vec<String>>,
    /// Withdrawals take effect and are not confirmed.
    pub withdrawals_fail: AtomicBool,
    /// Hosts whose calls are queued although they are listed as connected.
    queue_calls_to: Mutex<Vec<String>>,
    /// Ids of queued calls that were delivered at least once.
    delivered: Mutex<Vec<String>>,
    /// Number of queries for the queue of a host.
    queue_queries: AtomicUsize,
    last: Mutex<u64>,
    /// Hosts that know an equal call of another worker; if they are away, from their mailboxes.
    pub knows_equal: Mutex<Vec<String>>,
}

/// A call as its host sees it.
pub struct HostCall {
    pub id: String,
    pub host: String,
    pub rpc: Rpc,
    items: mpsc::Sender<BusItem>,
}

/// An admin query as its host sees it.
pub struct AdminCall {
    pub host: String,
    pub request: AdminRequest,
    items: mpsc::Sender<BusItem>,
}

impl AdminCall {
    pub async fn reply(&self, result: &impl serde::Serialize) {
        self.finish(Outcome::Result(raw(result))).await;
    }

    pub async fn refuse(&self, code: ErrorCode) {
        self.finish(RpcError::bus(code.code(), code.meaning(), code.hint()).into()).await;
    }

    async fn finish(&self, outcome: Outcome) {
        let reply = HostReply::Rpc(outcome).to_json();
        self.items.send(BusItem::Reply(Ok(Body::from_trusted(reply.into_bytes())))).await.ok();
    }

    /// Resolves when the worker dropped the query.
    pub async fn dropped(&self) {
        soon("the query is dropped", self.items.closed()).await;
    }
}

impl FakeBus {
    pub fn new(hosts: Vec<HostEntry>) -> Arc<Self> {
        let (sender, receiver) = mpsc::channel(1000);
        let (admin, sent) = mpsc::channel(1000);
        Arc::new(Self {
            hosts: watch::channel(Arc::new(hosts)).0,
            calls: (sender, tokio::sync::Mutex::new(receiver)),
            admin: (admin, tokio::sync::Mutex::new(sent)),
            detached: Arc::default(),
            waiting: Mutex::default(),
            sent: Mutex::default(),
            sent_changed: Notify::new(),
            sessions: Mutex::default(),
            withdrawn: Mutex::default(),
            withdrawals_fail: AtomicBool::new(false),
            queue_calls_to: Mutex::default(),
            delivered: Mutex::default(),
            queue_queries: AtomicUsize::new(0),
            last: Mutex::default(),
            knows_equal: Mutex::default(),
        })
    }

    pub fn set_hosts(&self, hosts: Vec<HostEntry>) {
        self.hosts.send_replace(Arc::new(hosts));
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|call| self.route(call));
    }

    /// The next call that reaches its host.
    pub async fn next_call(&self) -> HostCall {
        soon("a call", async { self.calls.1.lock().await.recv().await.unwrap() }).await
    }

    /// The next admin query.
    pub async fn next_admin(&self) -> AdminCall {
        soon("an admin query", async { self.admin.1.lock().await.recv().await.unwrap() }).await
    }

    /// Ids of calls that the worker detached from.
    pub fn detached(&self) -> Vec<String> {
        self.detached.lock().unwrap().clone()
    }

    /// Answers every further call.
    pub fn serve(self: &Arc<Self>, answer: impl Fn(&HostCall) -> Result<Value, RpcError> + Send + 'static) {
        let bus = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let Some(call) = bus.calls.1.lock().await.recv().await else { return };
                match answer(&call) {
                    Ok(result) => call.reply(result).await,
                    Err(error) => call.finish(HostReply::Rpc(error.into())).await,
                }
            }
        });
    }

    /// The first one-way message that matches, including messages sent before.
    pub async fn sent(&self, fits: impl Fn(&HostRequest) -> bool) -> HostRequest {
        soon("a message to the host", async {
            loop {
                let mut more = std::pin::pin!(self.sent_changed.notified());
                more.as_mut().enable();
                if let Some((_, found)) = self.sent.lock().unwrap().iter().find(|(_, sent)| fits(sent)) {
                    return found.clone();
                }
                more.await;
            }
        })
        .await
    }

    /// The number of calls that are queued for their host.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    /// Removes the first queued call without notifying its caller.
    pub fn remove_first_waiting(&self) {
        self.waiting.lock().unwrap().remove(0);
    }

    /// Marks the first queued call as delivered at least once.
    pub fn mark_first_delivered(&self) {
        let id = self.waiting.lock().unwrap()[0].id.clone();
        self.delivered.lock().unwrap().push(id);
    }

    /// How often the worker has asked for the queue of a host.
    pub fn queue_queries(&self) -> usize {
        self.queue_queries.load(Ordering::Relaxed)
    }

    pub fn withdrawn(&self) -> Vec<String> {
        self.withdrawn.lock().unwrap().clone()
    }

    /// Queues calls to the host while it is still listed as connected, as if it had just disconnected.
    pub fn queue_calls_to(&self, host: &str) {
        self.queue_calls_to.lock().unwrap().push(host.into());
    }

    pub fn all_sent(&self) -> Vec<(String, HostRequest)> {
        self.sent.lock().unwrap().clone()
    }

    /// Sends an event to a session outside of any call.
    pub async fn send_session_event(&self, host: &str, session: &str, event: HostEvent) {
        let sender = self.sessions.lock().unwrap()[session].clone();
        sender.send(SessionEvent { host: host.into(), event }).await.unwrap();
    }

    /// Sends a server's notification without params to the only session, outside of any call.
    pub async fn notify_session(&self, host: &str, server: &str, method: &str) {
        let session = self.sessions.lock().unwrap().keys().next().unwrap().clone();
        let event = HostEvent::Notification { server: server.into(), method: method.into(), params: None };
        self.send_session_event(host, &session, event).await;
    }

    fn route(&self, call: HostCall) {
        let hosts = self.hosts.borrow().clone();
        let is_queued = self.queue_calls_to.lock().unwrap().contains(&call.host);
        let is_connected =
            !is_queued && hosts.iter().any(|host| host.name == call.host && host.away_since_ms.is_none());
        match is_connected {
            true => self.calls.0.try_send(call).unwrap_or_else(|_| panic!("too many calls")),
            false => self.waiting.lock().unwrap().push(call),
        }
    }
}

impl HostCall {
    pub fn server(&self) -> &str {
        &self.rpc.server
    }

    pub fn params(&self) -> Value {
        self.rpc.params.as_ref().map_or(Value::Null, |params| serde_json::from_str(params.get()).unwrap())
    }

    pub async fn reply(&self, result: Value) {
        self.finish(HostReply::Rpc(Outcome::Result(raw(&result)))).await;
    }

    pub async fn finish(&self, reply: HostReply) {
        self.items.send(BusItem::Reply(Ok(Body::from_trusted(reply.to_json().into_bytes())))).await.ok();
    }

    pub async fn notify(&self, method: &str, params: Value) {
        let (server, method) = (self.rpc.server.clone(), method.to_owned());
        self.event(HostEvent::Notification { server, method, params: Some(raw(&params)) }).await;
    }

    /// Sends a client request with this id.
    pub async fn request_client(&self, id: &str, method: &str, params: Value) {
        let (server, method) = (self.rpc.server.clone(), method.to_owned());
        self.event(HostEvent::Request { server, id: Id::text(id), method, params: Some(raw(&params)) }).await;
    }

    async fn event(&self, event: HostEvent) {
        self.items.send(BusItem::Event(Body::from_trusted(event.to_json().into_bytes()))).await.ok();
    }

    /// Resolves when the worker dropped the call.
    pub async fn cancelled(&self) {
        soon("the cancellation", self.items.closed()).await;
    }
}

impl Bus for FakeBus {
    fn start_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        let request = parse(&body);
        let id = {
            let mut last = self.last.lock().unwrap();
            *last += 1;
            format!("bus-{last}")
        };
        let (items, arriving) = mpsc::channel(1000);
        let detached = Arc::clone(&self.detached);
        let call = FakeCall { id: id.clone(), detached, arriving, limit, until: Instant::now() + limit };
        match request {
            HostRequest::Rpc(rpc) => self.route(HostCall { id, host: host.into(), rpc, items }),
            HostRequest::Admin(request) => {
                let sent = self.admin.0.try_send(AdminCall { host: host.into(), request, items });
                assert!(sent.is_ok(), "too many admin queries");
            }
            HostRequest::Earlier(_) => {
                let known = self.knows_equal.lock().unwrap().iter().any(|knows| knows == host);
                let reply = HostReply::Rpc(Outcome::Result(raw(&json!({"known": known})))).to_json();
                items.try_send(BusItem::Reply(Ok(Body::from_trusted(reply.into_bytes())))).unwrap();
            }
            _ => panic!("neither an rpc request nor an admin query"),
        }
        Box::pin(async move { Ok(Box::new(call) as Box<dyn BusCall>) })
    }

    fn send<'a>(&'a self, host: &'a str, body: Body, _limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.sent.lock().unwrap().push((host.into(), parse(&body)));
        self.sent_changed.notify_waiters();
        Box::pin(async { Ok(()) })
    }

    fn ahead<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<u64>> {
        let waiting = self.waiting.lock().unwrap();
        let position = waiting.iter().filter(|waiting| waiting.host == host).position(|waiting| waiting.id == call);
        Box::pin(async move { position.map(|position| position as u64) })
    }

    fn waiting<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        self.queue_queries.fetch_add(1, Ordering::Relaxed);
        let delivered = self.delivered.lock().unwrap();
        let waiting = self.waiting.lock().unwrap();
        let of_host = waiting.iter().filter(|waiting| waiting.host == host);
        let as_row = |call: &HostCall| Waiting {
            id: call.id.clone(),
            is_untouched: !delivered.contains(&call.id),
            age_ms: 1000,
        };
        let rows = of_host.map(as_row).collect();
        Box::pin(async { Some(rows) })
    }

    fn withdraw<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        let mut waiting = self.waiting.lock().unwrap();
        let position = waiting.iter().position(|waiting| waiting.host == host && waiting.id == call);
        let found = position.map(|position| waiting.remove(position));
        if let Some(call) = &found {
            self.withdrawn.lock().unwrap().push(call.id.clone());
            let reason = "withdrawn".to_owned();
            let cancelled = BrokerError::Rejected { code: Some(ErrorCode::Cancelled), reason, id: None };
            call.items.try_send(BusItem::Reply(Err(cancelled))).ok();
        }
        let was_delivered = self.delivered.lock().unwrap().iter().any(|delivered| delivered == call);
        let is_confirmed = found.is_some() && !was_delivered && !self.withdrawals_fail.load(Ordering::Relaxed);
        Box::pin(async move { is_confirmed })
    }

    fn has_equal<'a>(&'a self, host: &'a str, _key: u64) -> BoxFuture<'a, bool> {
        let known = self.knows_equal.lock().unwrap().iter().any(|knows| knows == host);
        Box::pin(async move { known })
    }

    fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.subscribe()
    }

    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        let (sender, receiver) = mpsc::channel(100);
        self.sessions.lock().unwrap().insert(key.into(), sender);
        receiver
    }
}

struct FakeCall {
    id: String,
    arriving: mpsc::Receiver<BusItem>,
    limit: Duration,
    until: Instant,
    detached: Arc<Mutex<Vec<String>>>,
}

impl BusCall for FakeCall {
    fn id(&self) -> &str {
        &self.id
    }

    fn next(&mut self) -> BoxFuture<'_, BusItem> {
        Box::pin(async {
            match tokio::time::timeout_at(self.until, self.arriving.recv()).await {
                Ok(Some(item)) => item,
                Ok(None) => std::future::pending().await,
                Err(_) => BusItem::Reply(Err(BrokerError::Timeout(self.limit))),
            }
        })
    }

    fn detach(&mut self) {
        self.detached.lock().unwrap().push(self.id.clone());
        // Keeps the channel open, because dropping the receiver would count as a cancellation.
        let (_, closed) = mpsc::channel(1);
        std::mem::forget(std::mem::replace(&mut self.arriving, closed));
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>> {
        self.detached.lock().unwrap().push(self.id.clone());
        // Keeps the channel open, because dropping the receiver would count as a cancellation.
        std::mem::forget(self.arriving);
        Box::pin(async { Ok(()) })
    }
}

fn parse(body: &Body) -> HostRequest {
    HostRequest::parse(body.text().unwrap()).unwrap()
}

/// Answers `initialize`, and echoes any other request.
pub fn echo(call: &HostCall) -> Result<Value, RpcError> {
    Ok(match call.rpc.method.as_str() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": call.server(), "version": "9"}, "extra": 1}),
        method => json!({"asked": method, "server": call.server(), "params": call.params()}),
    })
}
