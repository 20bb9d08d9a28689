//! The original's client on our broker: acknowledged messages are not redelivered, all others are.

use crate::brokers::OurBroker;
use crate::original::{MsgId, agent, connect, deliver, flush, next, subscriber, task};
use crate::soon;

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reconnect_only_unacknowledged_messages_are_redelivered() {
    let broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let mut receiver = subscriber(&broker.endpoint(), agent("receiver")).await;
    let sent: Vec<_> = (0..4).map(|number| task("sender", number)).collect();
    for message in &sent {
        deliver(&mut sender, "receiver", message.clone()).await;
        assert_eq!(next(&mut receiver).await, *message);
    }
    receiver.ack(sent[0].id.clone()).await.expect("acknowledged");
    receiver.ack(sent[2].id.clone()).await.expect("acknowledged");
    flush(&mut receiver).await;
    soon(receiver.close()).await.expect("closed");

    let last = task("sender", 99);
    deliver(&mut sender, "receiver", last.clone()).await;
    let mut again = subscriber(&broker.endpoint(), agent("receiver")).await;
    for expected in [&sent[1], &sent[3], &last] {
        assert_eq!(next(&mut again).await, *expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_acknowledgement_survives_a_restart_of_the_broker() {
    let mut broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let (done, left) = (task("sender", 1), task("sender", 2));
    deliver(&mut sender, "receiver", done.clone()).await;
    deliver(&mut sender, "receiver", left.clone()).await;
    let mut receiver = subscriber(&broker.endpoint(), agent("receiver")).await;
    assert_eq!(next(&mut receiver).await, done);
    soon(receiver.ack_confirmed(done.id.clone())).await.expect("accepted");

    broker.restart().await;
    let mut receiver = subscriber(&broker.endpoint(), agent("receiver")).await;
    assert_eq!(next(&mut receiver).await, left);
    // The original repeats it after a reconnect, because the first confirmation could have been lost.
    soon(receiver.ack_confirmed(done.id)).await.expect("accepted again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_can_confirm_without_displacing_the_subscriber() {
    let broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let mut receiver = subscriber(&broker.endpoint(), agent("receiver")).await;
    let first = task("sender", 1);
    deliver(&mut sender, "receiver", first.clone()).await;
    assert_eq!(next(&mut receiver).await, first);

    let mut second_connection = connect(&broker.endpoint(), agent("receiver")).await;
    soon(second_connection.ack_confirmed(first.id)).await.expect("accepted");
    let second = task("sender", 2);
    deliver(&mut sender, "receiver", second.clone()).await;
    assert_eq!(next(&mut receiver).await, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_of_an_id_that_is_gone_is_accepted() {
    let broker = OurBroker::start().await;
    let mut client = subscriber(&broker.endpoint(), agent("client")).await;
    client.ack(MsgId::new()).await.expect("sent");
    soon(client.ack_confirmed(MsgId::new())).await.expect("accepted");
    let to_myself = task("client", 1);
    deliver(&mut client, "client", to_myself.clone()).await;
    assert_eq!(next(&mut client).await, to_myself);
}
