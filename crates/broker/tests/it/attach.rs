//! Bus connections within the process: served like others, as the agent that was named, and counted.

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
        within("room", self.0.send(Message::text(frame.to_string()))).await.expect("it stands");
    }

    async fn frame(&mut self) -> Value {
        let message = within("a frame", self.0.next()).await.expect("it stands").expect("it stands");
        serde_json::from_str(message.as_text().expect("JSON was agreed on")).expect("JSON")
    }
}

#[tokio::test]
async fn the_identity_is_the_one_that_was_given_and_not_the_one_that_is_claimed() {
    let bus = Bus::start().await;
    let mut watcher = bus.subscriber("watcher").await;
    let mut local = Local::attach(&bus, AgentRef::new("inside").with_role("worker")).expect("a seat");
    local.send(json!({"kind": "hello", "agent": {"session_id": "forged", "role": "boss"}, "token": ""})).await;
    assert_eq!(local.frame().await["kind"], "welcome");
    local.send(crate::support::deliver("watcher", "m1", json!(1))).await;
    let message = watcher.expect_message("m1").await;
    assert_eq!(message["message"]["from"], json!({"session_id": "inside", "role": "worker"}));
}

#[tokio::test]
async fn a_connection_within_the_process_takes_a_seat_and_gives_it_back() {
    let server = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let first = Local::attach(&bus, AgentRef::new("first")).expect("a seat");
    assert!(matches!(Local::attach(&bus, AgentRef::new("second")), Err(BrokerError::NoSeat)));
    drop(first);
    within("the seat", async {
        while Local::attach(&bus, AgentRef::new("second")).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(Local::attach(&bus, AgentRef::new("../x")), Err(BrokerError::BadName(_))));
}
