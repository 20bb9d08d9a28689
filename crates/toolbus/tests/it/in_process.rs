//! A client in the broker's own process, connected without a socket.

use crate::support::{TestBus, message, soon};
use std::sync::Arc;
use toolbus::{AgentRef, BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::{link, relay};

#[tokio::test]
async fn an_in_process_client_sends_and_receives() {
    let bus = TestBus::start().await;
    let agent = AgentRef::new("inside").with_role("worker");
    let link = bus.server().attach(agent.clone()).expect("a connection slot");
    let inside = BrokerClient::connect_over(link, agent, ClientOptions::default()).await.expect("a connection");
    inside.subscribe().await.expect("open");
    let outside = bus.client("outside").await;
    outside.subscribe().await.expect("open");
    soon("receipt", outside.deliver("inside", message(1))).await.expect("accepted");
    let request = soon("message", inside.next_message()).await.expect("open");
    soon("receipt", inside.reply(&request, "reply", request.body.clone())).await.expect("accepted");
    let reply = soon("reply", outside.next_message()).await.expect("open");
    assert_eq!((&*reply.from.session_id, reply.from.role.as_deref()), ("inside", Some("worker")));
    bus.stop().await;
    assert!(soon("the end", inside.next_message()).await.is_none(), "the link ends with the broker");
}

#[tokio::test]
async fn an_in_process_client_reconnects_over_a_new_link() {
    let bus = TestBus::start().await;
    let (server, agent) = (Arc::clone(bus.server()), AgentRef::new("inside"));
    let quick = std::time::Duration::from_millis(5);
    let options = ClientOptions { backoff: quick, ..ClientOptions::default() };
    let (cut, cuts) = tokio::sync::watch::channel(0);
    let links = move || {
        let real = server.attach(AgentRef::new("inside")).map_err(|error| BrokerError::Transport(error.to_string()))?;
        let (theirs, ours) = link();
        let mut cuts = cuts.clone();
        tokio::spawn(async move {
            cuts.mark_unchanged();
            tokio::select! {
                () = relay(&real, &ours) => {}
                _ = cuts.changed() => {}
            }
        });
        Ok(theirs)
    };
    let inside = BrokerClient::connect_local(links, agent, options).await.expect("a connection");
    inside.subscribe().await.expect("open");
    let outside = bus.client("outside").await;
    for number in 0..4 {
        soon("receipt", outside.deliver("inside", message(number))).await.expect("accepted");
        let received = soon("message", inside.next_message()).await.expect("open");
        assert_eq!(received.body.to::<u64>().expect("a number"), number);
        soon("confirmation", async { while inside.ack_confirmed(received.id.clone()).await.is_err() {} }).await;
        cut.send_modify(|cuts| *cuts += 1);
    }
    bus.stop().await;
}
