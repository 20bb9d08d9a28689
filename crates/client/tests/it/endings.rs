//! A client closes permanently when its credential is revoked or expires, or when another client with the same
//! credential displaces it. Every waiting caller gets the reason, and the client does not reconnect.

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

/// A client and its number of connection attempts.
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
        let (agent, standing) = (AgentRef::new(name).with_role("some"), standing.clone());
        let identity = Identity { agent, rights, standing, incarnation: 0 };
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
    outcome.expect_err("an error").code()
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_client_has_the_identity_that_the_broker_stamps() {
    let bus = Bus::start();
    let client = bus.worker("w#mcp").await;
    assert_eq!(client.me(), AgentRef::new("w#mcp").with_role("some"));
}

#[tokio::test]
async fn an_ended_credential_ends_all_operations_without_a_reconnect() {
    let short_lived = Standing::until(SystemTime::now() + Duration::from_millis(500));
    for (standing, expected) in
        [(Standing::forever(), ErrorCode::CredentialRevoked), (short_lived, ErrorCode::CredentialExpired)]
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
        let (reply, item, message, event, (), closed, ()) = soon("the end of all operations", waiting).await;
        assert_eq!(code(reply), Some(expected));
        assert!(matches!(&item, Some(CallItem::Reply(Err(end))) if end.code() == Some(expected)), "{item:?}");
        assert!(message.is_none() && event.is_none());
        assert_eq!(closed.code(), Some(expected));
        assert_eq!(mux.client().end_reason().and_then(|end| end.code()), Some(expected));
        assert_eq!(code(soon("a refusal", mux.client().deliver("host", request())).await), Some(expected));
        assert_eq!(code(soon("a refusal", mux.client().status()).await), Some(expected));
        assert_eq!(connections.load(Ordering::Relaxed), 1, "the client reconnected");
    }
}

#[tokio::test]
async fn a_displaced_client_closes_and_does_not_reconnect() {
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
    let more = soon("a refusal", first.request("host", InboxKind::McpRequest, Body::null(), LONG)).await;
    assert_eq!(code(more), Some(ErrorCode::Displaced));
    assert_eq!(connections.load(Ordering::Relaxed), 1, "the client reconnected");
    assert!(second.reader_alive() && second.end_reason().is_none());
}

#[tokio::test]
async fn with_a_shared_token_a_displaced_client_can_deliver_and_subscribe_again() {
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
async fn an_operator_only_query_is_refused_immediately() {
    let bus = Bus::start();
    let worker = bus.worker("w").await;
    assert_eq!(code(soon("an answer", worker.status()).await), Some(ErrorCode::OperatorOnly));
    let announced = soon("an answer", worker.announce(vec![(None, Body::null())])).await;
    assert_eq!(code(announced), Some(ErrorCode::NotAHost));
    assert!(!worker.is_closed());
}

/// A broker may lose a request in a crash while a host works on it. Here the request expires and its id is evicted
/// instead.
#[tokio::test]
async fn a_refused_reply_answers_the_repeated_request_without_running_it_again() {
    let bus = Bus::with(EngineOptions { history_ids: 1, ..EngineOptions::default() });
    let host = bus.host().await;
    let worker = bus.worker("w").await;
    worker.subscribe().await.unwrap();
    let original = request();
    let short_deadline = SendOptions { deadline: Some(Duration::from_millis(200)) };
    soon("a receipt", worker.deliver_with("host", original.clone(), short_deadline)).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    // The request expires while the host holds it; other ids then evict its id from the history.
    for _ in 0..3 {
        let filler = request();
        soon("a receipt", worker.deliver("host", filler.clone())).await.unwrap();
        let filler = soon("a request", host.next_message()).await.unwrap();
        soon("a receipt", host.ack_confirmed(filler.id)).await.unwrap();
    }
    let refusal = until_refused(&host, &received).await;
    assert_eq!(refusal.code(), Some(ErrorCode::NotYourRequest));
    for _ in 0..3 {
        let filler = request();
        soon("a receipt", worker.deliver("host", filler.clone())).await.unwrap();
        let filler = soon("a request", host.next_message()).await.unwrap();
        soon("a receipt", host.ack_confirmed(filler.id)).await.unwrap();
    }
    worker.deliver_nowait("host", original.clone(), SendOptions::default()).await.unwrap();
    let reply = async {
        loop {
            let reply = worker.next_message().await.expect("an open client");
            if reply.body.to::<String>().is_ok_and(|text| text == "final") {
                return reply;
            }
            worker.ack(reply.id).await.unwrap();
        }
    };
    assert_eq!(soon("the reply", reply).await.correlation_id, Some(original.id));
    soon("a receipt", worker.deliver("host", InboxMessage { id: "next".into(), ..request() })).await.unwrap();
    assert_eq!(
        soon("the next message", host.next_message()).await.unwrap().id.as_str(),
        "next",
        "the request was delivered again"
    );
}

/// Replies until the request has expired, and returns the error of the refused reply.
async fn until_refused(host: &BrokerClient, request: &InboxMessage) -> BrokerError {
    soon("a refusal", async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let reply = |text: &str| {
                let body = Body::of(&text).unwrap();
                InboxMessage::new(host.me(), InboxKind::McpReply, body).correlated_to(request.id.clone())
            };
            // Not with `reply`, which would acknowledge the request.
            match host.deliver(&request.from.session_id, reply("early")).await {
                Err(error) if error.code() == Some(ErrorCode::NotYourRequest) => {
                    return host.reply_message(request, &reply("final")).await.expect_err("still refused");
                }
                outcome => drop(outcome.unwrap()),
            }
        }
    })
    .await
}
