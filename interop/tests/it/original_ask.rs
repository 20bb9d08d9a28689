//! Asks over our broker with the original's code on at least one side.

use crate::brokers::OurBroker;
use crate::original::{self, AskMode, BrokerError, agent, connect, deliver, next, subscriber, task};
use crate::{TOKEN, eventually, ours, soon};
use bamboo_broker::{ask_agent, ask_over};
use futures_util::future::join_all;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_original_answers_the_originals_ask() {
    let broker = OurBroker::start().await;
    original::spawn_answering_agent(&broker.endpoint(), "expert", async |question| format!("{question}? yes"));
    for question in ["ready", "steady"] {
        let asking =
            ask_agent(&broker.endpoint(), agent("boss"), TOKEN, "expert", question, AskMode::Query, TIMEOUT).await;
        assert_eq!(asking.expect("an answer"), format!("{question}? yes"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_answers_the_originals_ask() {
    let broker = OurBroker::start().await;
    let expert = ours::subscriber(&broker.endpoint(), "expert").await;
    let endpoint = broker.endpoint();
    let asking = ask_agent(&endpoint, agent("boss"), TOKEN, "expert", "ready", AskMode::Steer, TIMEOUT);
    let answering = async {
        let ask = ours::next(&expert).await;
        assert_eq!(ours::question(&ask), "ready");
        assert_eq!(ours::value(&ask)["mode"], "steer");
        soon(expert.answer(&ask, "yes")).await.expect("a receipt");
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!(answer.expect("an answer"), "yes");
    // Ask and reply are both settled.
    eventually(async || soon(expert.status()).await.expect("a status").mailboxes.iter().all(|m| m.messages == 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_over_a_shared_connection_leaves_other_messages_in_the_mailbox() {
    let broker = OurBroker::start().await;
    let expert = ours::subscriber(&broker.endpoint(), "expert").await;
    let mut boss = subscriber(&broker.endpoint(), agent("boss")).await;
    let mut colleague = connect(&broker.endpoint(), agent("colleague")).await;
    let other_message = task("colleague", 1);
    let me = agent("boss");
    let asking = ask_over(&mut boss, &me, "expert", "ready", AskMode::Query, TIMEOUT);
    let answering = async {
        let ask = ours::next(&expert).await;
        deliver(&mut colleague, "boss", other_message.clone()).await;
        soon(expert.answer(&ask, "yes")).await.expect("a receipt");
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!(answer.expect("an answer"), "yes");
    soon(boss.close()).await.expect("closed");
    let mut boss = subscriber(&broker.endpoint(), agent("boss")).await;
    assert_eq!(next(&mut boss).await, other_message);
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_asks_get_their_own_answers_in_reverse_order() {
    let broker = OurBroker::start().await;
    let expert = ours::subscriber(&broker.endpoint(), "expert").await;
    let boss = subscriber(&broker.endpoint(), agent("boss")).await.into_multiplexed(agent("boss"));
    let boss = &boss;
    let asking = join_all((0..8).map(|number| async move {
        let answer = boss.ask("expert", &format!("q{number}"), AskMode::Query, TIMEOUT).await;
        assert_eq!(answer.expect("an answer"), format!("a{number}"));
    }));
    let answering = async {
        let mut asks = Vec::new();
        for _ in 0..8 {
            asks.push(ours::next(&expert).await);
        }
        for ask in asks.iter().rev() {
            let answer = ours::question(ask).replace('q', "a");
            soon(expert.answer(ask, answer)).await.expect("a receipt");
        }
    };
    tokio::join!(asking, answering);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_times_out_is_cancelled_at_our_client() {
    let broker = OurBroker::start().await;
    let expert = ours::subscriber(&broker.endpoint(), "expert").await;
    let boss = subscriber(&broker.endpoint(), agent("boss")).await.into_multiplexed(agent("boss"));
    let outcome = boss.ask("expert", "anyone?", AskMode::Query, Duration::from_millis(300)).await;
    assert!(matches!(outcome, Err(BrokerError::Transport(_))), "{outcome:?}");
    let ask = ours::next(&expert).await;
    assert_eq!(soon(expert.next_cancel()).await, Some(ask.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_original_answers_our_clients_ask() {
    let broker = OurBroker::start().await;
    original::spawn_answering_agent(&broker.endpoint(), "expert", async |question| format!("{question}? yes"));
    let boss = ours::mux(&broker.endpoint(), "boss").await;
    assert_eq!(boss.ask("expert", "ready", TIMEOUT).await.expect("an answer"), "ready? yes");
}
