//! What the original's client can do beyond messages, on our broker: late acknowledgements, batches of events, an empty
//! role, and calls for what our broker does not have.

use crate::brokers::OurBroker;
use crate::original::{BrokerError, MsgId, agent, connect, subscriber, task};
use crate::soon;
use bamboo_broker::BrokerStreamEvent;
use bamboo_subagent::{ActorEventBatch, ActorEventQos};
use serde_json::json;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_acknowledges_late_gets_every_message() {
    let broker = OurBroker::start().await;
    let mut late = subscriber(&broker.endpoint(), agent("late")).await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    for number in 0..1_500 {
        let sent = task("sender", number);
        soon(sender.deliver("late", sent.clone())).await.expect("a receipt");
        assert_eq!(soon(late.next_message()).await.expect("a message"), sent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_events_arrive_with_their_numbers() {
    let broker = OurBroker::start().await;
    let mut parent = subscriber(&broker.endpoint(), agent("parent")).await;
    let mut worker = connect(&broker.endpoint(), agent("worker")).await;
    let run = MsgId::new();
    let batch = |seq| ActorEventBatch {
        logical_session: None,
        activation_id: Some("run-1".into()),
        execution_epoch: 1,
        source_node_id: None,
        source_actor_id: Some("worker".into()),
        first_seq: seq,
        last_seq: seq,
        qos: ActorEventQos::Ephemeral,
        events: vec![json!({"type": "token", "content": "x"})],
    };
    for seq in 1..4 {
        worker.publish_event_batch("parent", &run, batch(seq)).await.expect("sent");
    }
    for seq in 1..4 {
        let event = soon(parent.next_message_or_event_batch()).await;
        let BrokerStreamEvent::EventBatch(Some(delivery)) = event else { panic!("no batch") };
        assert_eq!((delivery.correlation_id, delivery.batch), (run.clone(), batch(seq)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_empty_role_is_answered_and_an_observation_fails_at_once() {
    let broker = OurBroker::start().await;
    let mut client = subscriber(&broker.endpoint(), agent("client")).await;
    assert_eq!(soon(client.list_connected("")).await.expect("an answer"), Vec::<String>::new());
    let started = Instant::now();
    let observed = soon(client.observe_host("worker", "gpu")).await;
    assert!(matches!(observed, Err(BrokerError::Transport(_))), "{observed:?}");
    assert!(started.elapsed().as_secs() < 10, "without waiting for the client's timeout");
}
