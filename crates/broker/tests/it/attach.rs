//! In-process bus connections: served like others, with the given identity, and counted towards the connection limit.

use crate::support::{Bus, Setup, within};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio_websockets::{ClientBuilder, Message, WebSocketStream};
use toolbus_broker::{BrokerError, ServerOptions};
use toolbus_protocol::AgentRef;

struct Local(WebSocketStream<DuplexStream>);

impl Local {
    fn attach(bus: &Bus, agent: AgentRef) -> Result<Self, BrokerError> {
        Ok(Self(ClientBuilder::new().take_over(bus.server().attach(agent)?)))
    }

    async fn send(&mut self, frame: Value) {
        within("room to send", self.0.send(Message::text(frame.to_string()))).await.expect("the connection is open");
    }

    async fn frame(&mut self) -> Value {
        let message =
            within("a frame", self.0.next()).await.expect("the connection is open").expect("the connection is open");
        serde_json::from_str(message.as_text().expect("JSON framing was negotiated")).expect("JSON")
    }
}

#[tokio::test]
async fn the_identity_is_the_given_one_and_not_the_claimed_one() {
    let bus = Bus::start().await;
    let mut watcher = bus.subscriber("watcher").await;
    let mut local = Local::attach(&bus, AgentRef::new("inside").with_role("worker")).expect("a permit");
    local.send(json!({"kind": "hello", "agent": {"session_id": "forged", "role": "boss"}, "token": ""})).await;
    assert_eq!(local.frame().await["kind"], "welcome");
    local.send(crate::support::deliver("watcher", "m1", json!(1))).await;
    let message = watcher.expect_message("m1").await;
    assert_eq!(message["message"]["from"], json!({"session_id": "inside", "role": "worker"}));
}

#[tokio::test]
async fn an_in_process_connection_holds_a_permit_until_it_ends() {
    let server = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let first = Local::attach(&bus, AgentRef::new("first")).expect("a permit");
    assert!(matches!(Local::attach(&bus, AgentRef::new("second")), Err(BrokerError::NoSeat)));
    drop(first);
    within("the released permit", async {
        while Local::attach(&bus, AgentRef::new("second")).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(Local::attach(&bus, AgentRef::new("../x")), Err(BrokerError::BadName(_))));
}
