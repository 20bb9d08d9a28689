//! Inspection of peers, messages and mailboxes, and brokers that do not support it.

use crate::support::{Bus, request, soon};
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_websockets::{Message, ServerBuilder};
use toolbus_client::{BrokerClient, BrokerError, Inspect, MAX_INSPECTED, MessageRef, SendOptions};
use toolbus_protocol::AgentRef;

#[tokio::test]
async fn an_inspection_reports_connected_peers_positions_and_queued_messages() {
    let bus = Bus::start();
    let (caller, _peer) = (bus.client("caller").await, bus.client("peer").await);
    let deadline = Some(Duration::from_secs(600));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let sent = caller.deliver_with("host", request(), SendOptions { deadline });
        ids.push(soon("a receipt", sent).await.unwrap().into_inner());
    }
    let messages = ids.iter().map(|id| MessageRef { to: "host".into(), id: id.clone() }).collect();
    let peers = vec!["peer".into(), "host".into()];
    let inspect = Inspect { peers, messages, rows_of: Some("host".into()), ..Inspect::default() };
    let inspected = soon("an answer", caller.inspect(inspect)).await.unwrap();
    assert_eq!(
        (inspected.peers, inspected.messages, inspected.more),
        (vec![true, false], vec![Some(0), Some(1)], false)
    );
    let rows: Vec<_> = inspected.rows.iter().map(|row| (row.id.clone(), &*row.from, row.attempt)).collect();
    assert_eq!(rows, [(ids[0].clone(), "caller", 0), (ids[1].clone(), "caller", 0)]);
}

#[tokio::test]
async fn an_inspection_over_the_limit_is_refused_before_it_is_sent() {
    let client = Bus::start().client("caller").await;
    let inspect = Inspect { peers: vec!["n".into(); MAX_INSPECTED + 1], ..Inspect::default() };
    let error = client.inspect(inspect).await.unwrap_err();
    assert!(matches!(error, BrokerError::Rejected { .. }), "{error:?}");
    assert!(client.reader_alive());
}

#[tokio::test]
async fn no_inspection_is_sent_to_an_original_broker() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (_, mut socket) = ServerBuilder::new().accept(stream).await.unwrap();
        socket.next().await.unwrap().unwrap();
        for frame in [r#"{"kind":"welcome"}"#, r#"{"kind":"broker_identity","id":"old"}"#] {
            socket.send(Message::text(frame)).await.unwrap();
        }
        while socket.next().await.is_some() {}
    });
    let endpoint = format!("ws://{address}");
    let connecting = BrokerClient::connect(&endpoint, AgentRef::new("caller"), "token");
    let client = soon("a connection", connecting).await.unwrap();
    let error =
        tokio::time::timeout(Duration::from_secs(1), client.inspect(Inspect::default())).await.unwrap().unwrap_err();
    assert!(matches!(error, BrokerError::Protocol(_)), "{error:?}");
}
