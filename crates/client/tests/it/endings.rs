//! What ends a client for good: its credential is taken back, or another client of the same credential has the mailbox.
//! Whoever waits is told why, and nothing is tried again.

use crate::support::{request, soon, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, Identity, Rights, Standing};
use toolbus_client::{BrokerClient, BrokerError, CallItem, ClientOptions, ErrorCode, SendOptions};
use toolbus_engine::EngineOptions;
use toolbus_identity::EndReason;
use toolbus_protocol::{AgentRef, Body, InboxKind, InboxMessage};

struct Bus {
    _folder: TempDir,
    server: Arc<BrokerServer>,
}

/// A client, and how often it has connected.
struct Counted {
    client: BrokerClient,
    connections: Arc<AtomicUsize>,
}

impl Bus {
    fn start() -> Self {
        Self::with(EngineOptions::default())
    }

    fn with(engine: EngineOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let core = BrokerCore::open(folder.path(), CoreOptions { engine, ..CoreOptions::default() }).unwrap();
        Self { _folder: folder, server: BrokerServer::new(core, "unused") }
    }

    async fn client(&self, name: &'static str, rights: Rights, standing: &Standing) -> Counted {
        let identity = Identity { agent: AgentRef::new(name).with_role("some"), rights, standing: standing.clone() };
        let (server, connections) = (Arc::clone(&self.server), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&connections);
        let pipes = move || {
            count.fetch_add(1, Ordering::Relaxed);
            server.attach_as(identity.clone()).map_err(|error| BrokerError::Transport(error.to_string()))
        };
        let backoff = Duration::from_millis(1);
        let options = ClientOptions { backoff, longest_backoff: backoff, ..ClientOptions::default() };
        let client =
            soon("a connection", BrokerClient::connect_local(pipes, AgentRef::new("~"), options)).await.unwrap();
        Counted { client, connections }
    }

    async fn worker(&self, name: &'static str) -> BrokerClient {
        self.client(name, Rights::WORKER, &Standing::forever()).await.client
    }

    async fn host(&self) -> BrokerClient {
        let host = self.client("host", Rights::HOST, &Standing::forever()).await.client;
        host.subscribe().await.unwrap();
        soon("the announcement", host.announce(vec![(None, Body::null())])).await.unwrap();
        host
    }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, BrokerError>) -> Option<ErrorCode> {
    outcome.expect_err("an end").code()
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_client_is_who_the_broker_says() {
    let bus = Bus::start();
    let client = bus.worker("w#mcp").await;
    assert_eq!(client.me(), AgentRef::new("w#mcp").with_role("some"));
}

#[tokio::test]
async fn everything_ends_with_the_credential_and_nothing_is_tried_again() {
    let brief = Standing::until(SystemTime::now() + Duration::from_millis(500));
    for (standing, expected) in
        [(Standing::forever(), ErrorCode::CredentialRevoked), (brief, ErrorCode::CredentialExpired)]
    {
        let bus = Bus::start();
        let _host = bus.host().await;
        let Counted { client, connections } = bus.client("w", Rights::WORKER, &standing).await;
        let mut watch = client.watch_hosts();
        let mux = client.into_multiplexed();
        let mut call = mux.start_call("host", request(), LONG).await.unwrap();
        let waiting = async {
            tokio::join!(
                mux.request("host", InboxKind::McpRequest, Body::null(), LONG),
                call.next(),
                mux.client().next_message(),
                mux.client().next_event(),
                async { while watch.changed().await.is_some() {} },
                mux.client().closed(),
                async {
                    if expected == ErrorCode::CredentialRevoked {
                        standing.end(EndReason::Revoked);
                    }
                },
            )
        };
        let (reply, item, message, event, (), closed, ()) = soon("all ends", waiting).await;
        assert_eq!(code(reply), Some(expected));
        assert!(matches!(&item, Some(CallItem::Reply(Err(end))) if end.code() == Some(expected)), "{item:?}");
        assert!(message.is_none() && event.is_none());
        assert_eq!(closed.code(), Some(expected));
        assert_eq!(mux.client().end_reason().and_then(|end| end.code()), Some(expected));
        assert_eq!(code(soon("no", mux.client().deliver("host", request())).await), Some(expected));
        assert_eq!(code(soon("no", mux.client().status()).await), Some(expected));
        assert_eq!(connections.load(Ordering::Relaxed), 1, "it came back");
    }
}

#[tokio::test]
async fn a_displaced_client_ends_and_does_not_fight() {
    let bus = Bus::start();
    let _host = bus.host().await;
    let Counted { client, connections } = bus.client("w", Rights::WORKER, &Standing::forever()).await;
    let first = client.into_multiplexed();
    let mut call = first.start_call("host", request(), LONG).await.unwrap();
    until("the receipt of the request", async || first.client().list_connected("some").await.is_ok()).await;
    let second = bus.worker("w").await;
    second.subscribe().await.unwrap();
    let item = soon("the end of the call", call.next()).await;
    assert!(matches!(&item, Some(CallItem::Reply(Err(end))) if end.code() == Some(ErrorCode::Displaced)), "{item:?}");
    assert!(soon("the end of messages", first.client().next_message()).await.is_none());
    assert_eq!(soon("the end", first.client().closed()).await.code(), Some(ErrorCode::Displaced));
    let more = soon("no", first.request("host", InboxKind::McpRequest, Body::null(), LONG)).await;
    assert_eq!(code(more), Some(ErrorCode::Displaced));
    assert_eq!(connections.load(Ordering::Relaxed), 1, "it came back");
    assert!(second.reader_alive() && second.end_reason().is_none());
}

#[tokio::test]
async fn where_one_token_is_shared_a_displaced_client_can_still_deliver_and_take_the_mailbox_back() {
    let bus = Bus::start();
    let first = bus.client("w", Rights::UNRESTRICTED, &Standing::forever()).await.client;
    first.subscribe().await.unwrap();
    soon("the status", first.status()).await.unwrap();
    let second = bus.client("w", Rights::UNRESTRICTED, &Standing::forever()).await.client;
    second.subscribe().await.unwrap();
    assert!(soon("the end of messages", first.next_message()).await.is_none());
    assert!(!first.is_closed());
    soon("a receipt", first.deliver("elsewhere", request())).await.unwrap();
    first.subscribe().await.unwrap();
    assert!(soon("the end of messages", second.next_message()).await.is_none());
    soon("a receipt", first.deliver("w", request())).await.unwrap();
    assert!(soon("a message", first.next_message()).await.is_some());
}

#[tokio::test]
async fn a_question_that_only_operators_may_ask_is_refused_at_once() {
    let bus = Bus::start();
    let worker = bus.worker("w").await;
    assert_eq!(code(soon("an answer", worker.status()).await), Some(ErrorCode::OperatorOnly));
    let announced = soon("an answer", worker.announce(vec![(None, Body::null())])).await;
    assert_eq!(code(announced), Some(ErrorCode::NotAHost));
    assert!(!worker.is_closed());
}

/// A broker that crashed may have forgotten a request that a host works on. Here it forgets it in another way.
#[tokio::test]
async fn a_reply_that_came_too_early_is_sent_when_its_request_comes_again_and_the_work_is_not_done_twice() {
    let bus = Bus::with(EngineOptions { history_ids: 1, ..EngineOptions::default() });
    let host = bus.host().await;
    let worker = bus.worker("w").await;
    worker.subscribe().await.unwrap();
    let question = request();
    let brief = SendOptions { deadline: Some(Duration::from_millis(200)) };
    soon("a receipt", worker.deliver_with("host", question.clone(), brief)).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    // It expires in the host's hands, and then other ids come and its own is forgotten.
    for _ in 0..3 {
        let passing = request();
        soon("a receipt", worker.deliver("host", passing.clone())).await.unwrap();
        let passing = soon("a request", host.next_message()).await.unwrap();
        soon("a receipt", host.ack_confirmed(passing.id)).await.unwrap();
    }
    let early = until_refused(&host, &received).await;
    assert_eq!(early.code(), Some(ErrorCode::NotYourRequest));
    for _ in 0..3 {
        let passing = request();
        soon("a receipt", worker.deliver("host", passing.clone())).await.unwrap();
        let passing = soon("a request", host.next_message()).await.unwrap();
        soon("a receipt", host.ack_confirmed(passing.id)).await.unwrap();
    }
    worker.deliver_nowait("host", question.clone(), SendOptions::default()).await.unwrap();
    let reply = async {
        loop {
            let reply = worker.next_message().await.expect("open");
            if reply.body.to::<String>().is_ok_and(|text| text == "the last") {
                return reply;
            }
            worker.ack(reply.id).await.unwrap();
        }
    };
    assert_eq!(soon("the reply", reply).await.correlation_id, Some(question.id));
    soon("a receipt", worker.deliver("host", InboxMessage { id: "next".into(), ..request() })).await.unwrap();
    assert_eq!(soon("the next one", host.next_message()).await.unwrap().id.as_str(), "next", "not the request again");
}

/// Replies until the request has expired, and returns the refusal.
async fn until_refused(host: &BrokerClient, request: &InboxMessage) -> BrokerError {
    soon("a refusal", async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let reply = |text: &str| {
                let body = Body::of(&text).unwrap();
                InboxMessage::new(host.me(), InboxKind::McpReply, body).correlated_to(request.id.clone())
            };
            // Without acknowledging, or the first one would end it.
            match host.deliver(&request.from.session_id, reply("early")).await {
                Err(error) if error.code() == Some(ErrorCode::NotYourRequest) => {
                    return host.reply_message(request, &reply("the last")).await.expect_err("it is still refused");
                }
                outcome => drop(outcome.unwrap()),
            }
        }
    })
    .await
}
