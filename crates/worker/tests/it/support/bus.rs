//! A bus with hosts that do what the test says. Calls to a host that is away wait until it is back.

use super::soon;
use serde_json::{Value, json};
use std::collections::HashMap;
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
    left: Arc<Mutex<Vec<String>>>,
    sent: Mutex<Vec<(String, HostRequest)>>,
    sent_more: Notify,
    sessions: Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>,
    /// Ids of calls that were taken back.
    taken_back: Arc<Mutex<Vec<String>>>,
    lost: Mutex<Vec<String>>,
    touched: Mutex<Vec<String>>,
    last: Mutex<u64>,
}

/// A call as its host sees it.
pub struct HostCall {
    pub id: String,
    pub host: String,
    pub rpc: Rpc,
    items: mpsc::Sender<BusItem>,
}

/// A question about tasks, as the host is asked it.
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
        self.items.send(BusItem::Reply(Ok(Body::from_trusted(reply.into())))).await.ok();
    }

    /// Resolves when nobody waits for the answer any more.
    pub async fn forgotten(&self) {
        soon("the end of the wait", self.items.closed()).await;
    }
}

impl FakeBus {
    pub fn new(hosts: Vec<HostEntry>) -> Arc<Self> {
        let (sender, receiver) = mpsc::channel(1000);
        let (admin, asked) = mpsc::channel(1000);
        Arc::new(Self {
            hosts: watch::channel(Arc::new(hosts)).0,
            calls: (sender, tokio::sync::Mutex::new(receiver)),
            admin: (admin, tokio::sync::Mutex::new(asked)),
            left: Arc::default(),
            waiting: Mutex::default(),
            sent: Mutex::default(),
            sent_more: Notify::new(),
            sessions: Mutex::default(),
            taken_back: Arc::default(),
            lost: Mutex::default(),
            touched: Mutex::default(),
            last: Mutex::default(),
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

    /// The next question about tasks.
    pub async fn next_admin(&self) -> AdminCall {
        soon("a question at the admin", async { self.admin.1.lock().await.recv().await.unwrap() }).await
    }

    /// Calls that were left to themselves.
    pub fn left(&self) -> Vec<String> {
        self.left.lock().unwrap().clone()
    }

    /// Answers every call from now on.
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

    /// The first message to a host that fits, also among those that were sent before.
    pub async fn sent(&self, fits: impl Fn(&HostRequest) -> bool) -> HostRequest {
        soon("a message to the host", async {
            loop {
                let mut more = std::pin::pin!(self.sent_more.notified());
                more.as_mut().enable();
                if let Some((_, found)) = self.sent.lock().unwrap().iter().find(|(_, sent)| fits(sent)) {
                    return found.clone();
                }
                more.await;
            }
        })
        .await
    }

    /// How many calls wait for their host.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    /// The first of the calls that wait makes room; its caller hears nothing of it.
    pub fn forget_first_waiting(&self) {
        self.waiting.lock().unwrap().remove(0);
    }

    /// The first of the calls that wait was brought to its host once.
    pub fn touch_first_waiting(&self) {
        let id = self.waiting.lock().unwrap()[0].id.clone();
        self.touched.lock().unwrap().push(id);
    }

    pub fn taken_back(&self) -> Vec<String> {
        self.taken_back.lock().unwrap().clone()
    }

    /// Keeps what comes for that host although it looks as if it were there: it has left at this moment.
    pub fn lose(&self, host: &str) {
        self.lost.lock().unwrap().push(host.into());
    }

    pub fn all_sent(&self) -> Vec<(String, HostRequest)> {
        self.sent.lock().unwrap().clone()
    }

    /// Says something to a session outside of any call.
    pub async fn say(&self, host: &str, session: &str, event: HostEvent) {
        let sender = self.sessions.lock().unwrap()[session].clone();
        sender.send(SessionEvent { host: host.into(), event }).await.unwrap();
    }

    fn route(&self, call: HostCall) {
        let hosts = self.hosts.borrow().clone();
        let lost = self.lost.lock().unwrap().contains(&call.host);
        let is_there = !lost && hosts.iter().any(|host| host.name == call.host && host.away_since_ms.is_none());
        match is_there {
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
        self.items.send(BusItem::Reply(Ok(Body::from_trusted(reply.to_json().into())))).await.ok();
    }

    pub async fn notify(&self, method: &str, params: Value) {
        let (server, method) = (self.rpc.server.clone(), method.to_owned());
        self.event(HostEvent::Notification { server, method, params: Some(raw(&params)) }).await;
    }

    /// The server asks the client, under that id.
    pub async fn ask(&self, id: &str, method: &str, params: Value) {
        let (server, method) = (self.rpc.server.clone(), method.to_owned());
        self.event(HostEvent::Request { server, id: Id::text(id), method, params: Some(raw(&params)) }).await;
    }

    async fn event(&self, event: HostEvent) {
        self.items.send(BusItem::Event(Body::from_trusted(event.to_json().into()))).await.ok();
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
        let (taken_back, left) = (Arc::clone(&self.taken_back), Arc::clone(&self.left));
        // The far end alone says whether the call is still wanted.
        let call = FakeCall {
            id: id.clone(),
            items: items.downgrade(),
            taken_back,
            left,
            arriving,
            limit,
            until: Instant::now() + limit,
        };
        match request {
            HostRequest::Rpc(rpc) => self.route(HostCall { id, host: host.into(), rpc, items }),
            HostRequest::Admin(request) => {
                let asked = self.admin.0.try_send(AdminCall { host: host.into(), request, items });
                assert!(asked.is_ok(), "too many questions");
            }
            _ => panic!("a call that is no request"),
        }
        Box::pin(async move { Ok(Box::new(call) as Box<dyn BusCall>) })
    }

    fn send<'a>(&'a self, host: &'a str, body: Body, _limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.sent.lock().unwrap().push((host.into(), parse(&body)));
        self.sent_more.notify_waiters();
        Box::pin(async { Ok(()) })
    }

    fn ahead<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<u64>> {
        let waiting = self.waiting.lock().unwrap();
        let place = waiting.iter().filter(|waiting| waiting.host == host).position(|waiting| waiting.id == call);
        Box::pin(async move { place.map(|place| place as u64) })
    }

    fn waiting<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        let touched = self.touched.lock().unwrap();
        let waiting = self.waiting.lock().unwrap();
        let of_host = waiting.iter().filter(|waiting| waiting.host == host);
        let as_row =
            |call: &HostCall| Waiting { id: call.id.clone(), is_untouched: !touched.contains(&call.id), age_ms: 1000 };
        let rows = of_host.map(as_row).collect();
        Box::pin(async { Some(rows) })
    }

    fn withdraw<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        let mut waiting = self.waiting.lock().unwrap();
        let place = waiting.iter().position(|waiting| waiting.host == host && waiting.id == call);
        place.into_iter().for_each(|place| drop(waiting.remove(place)));
        Box::pin(async move { place.is_some() })
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
    items: mpsc::WeakSender<BusItem>,
    taken_back: Arc<Mutex<Vec<String>>>,
    arriving: mpsc::Receiver<BusItem>,
    limit: Duration,
    until: Instant,
    left: Arc<Mutex<Vec<String>>>,
}

impl BusCall for FakeCall {
    fn id(&self) -> &str {
        &self.id
    }

    fn take_back(&mut self) {
        self.taken_back.lock().unwrap().push(self.id.clone());
        let reason = "taken back".to_owned();
        let cancelled = BrokerError::Rejected { code: Some(ErrorCode::Cancelled), reason, id: None };
        self.items.upgrade().into_iter().for_each(|items| drop(items.try_send(BusItem::Reply(Err(cancelled.clone())))));
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

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>> {
        self.left.lock().unwrap().push(self.id.clone());
        // Nobody is told of a cancellation.
        std::mem::forget(self.arriving);
        Box::pin(async { Ok(()) })
    }
}

fn parse(body: &Body) -> HostRequest {
    HostRequest::parse(std::str::from_utf8(body.as_bytes()).unwrap()).unwrap()
}

/// A host whose only answer is its greeting and an echo of what was asked.
pub fn echo(call: &HostCall) -> Result<Value, RpcError> {
    Ok(match call.rpc.method.as_str() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": call.server(), "version": "9"}, "extra": 1}),
        method => json!({"asked": method, "server": call.server(), "params": call.params()}),
    })
}
