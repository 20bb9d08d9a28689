//! Requests and replies of our client on the original's broker.

use crate::brokers::OriginalBroker;
use crate::original;
use crate::ours::{self, AgentRef, BrokerError, InboxKind, InboxMessage, body, mux, next, question, subscriber, value};
use crate::soon;
use futures_util::future::join_all;
use serde_json::json;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_is_answered_by_our_client_and_by_the_originals() {
    let broker = OriginalBroker::start().await;
    let boss = mux(&broker.endpoint(), "boss").await;
    original::spawn_answering_agent(&broker.endpoint(), "theirs", async |question| format!("{question}? yes"));
    assert_eq!(boss.ask("theirs", "ready", TIMEOUT).await.expect("an answer"), "ready? yes");

    let expert = subscriber(&broker.endpoint(), "ours").await;
    let answering = async {
        let ask = next(&expert).await;
        let answer = format!("{}? no", question(&ask));
        soon(expert.answer(&ask, answer)).await.expect("a receipt");
    };
    let (answer, ()) = tokio::join!(boss.ask("ours", "ready", TIMEOUT), answering);
    assert_eq!(answer.expect("an answer"), "ready? no");
    // The answer acknowledged the ask, which is not redelivered.
    ours::flush(&expert).await;
    soon(expert.close()).await;
    let expert = subscriber(&broker.endpoint(), "ours").await;
    let sender = ours::connect(&broker.endpoint(), "sender").await;
    soon(sender.deliver("ours", ours::task("sender", 1))).await.expect("a receipt");
    assert_eq!(next(&expert).await.kind, InboxKind::Task);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_of_the_originals_client_is_answered_by_ours() {
    let broker = OriginalBroker::start().await;
    let expert = subscriber(&broker.endpoint(), "expert").await;
    let me = original::agent("boss");
    let boss = original::subscriber(&broker.endpoint(), me.clone()).await.into_multiplexed(me);
    let answering = async {
        let ask = next(&expert).await;
        soon(expert.answer(&ask, question(&ask).to_uppercase())).await.expect("a receipt");
    };
    let asking = boss.ask("expert", "loud", original::AskMode::Query, TIMEOUT);
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!(answer.expect("an answer"), "LOUD");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_get_their_own_replies_in_any_order() {
    let broker = OriginalBroker::start().await;
    let host = subscriber(&broker.endpoint(), "host").await;
    let worker = &mux(&broker.endpoint(), "worker").await;
    let requesting = join_all((0..64).map(|number| async move {
        let request = body(&json!({ "number": number }));
        let reply = worker.request("host", InboxKind::McpRequest, request, TIMEOUT).await.expect("a reply");
        assert_eq!(value(&reply), json!({ "double": number * 2 }));
    }));
    let host = &host;
    let replying = async move {
        let mut requests = Vec::new();
        for _ in 0..64 {
            requests.push(next(host).await);
        }
        let replies = requests.iter().rev().map(|request| async move {
            let double = body(&json!({ "double": ours::number(request) * 2 }));
            soon(host.reply(request, InboxKind::McpReply, double)).await.expect("a receipt");
        });
        join_all(replies).await;
    };
    tokio::join!(requesting, replying);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_from_another_agent_than_the_one_asked_is_ignored() {
    let broker = OriginalBroker::start().await;
    let boss = mux(&broker.endpoint(), "boss").await;
    let expert = subscriber(&broker.endpoint(), "expert").await;
    let meddler = ours::connect(&broker.endpoint(), "meddler").await;
    let answering = async {
        let ask = next(&expert).await;
        let forged = InboxMessage::new(AgentRef::new("meddler"), InboxKind::Reply, body(&json!({"answer": "no"})));
        soon(meddler.deliver("boss", forged.correlated_to(ask.id.clone()))).await.expect("a receipt");
        soon(expert.answer(&ask, "yes")).await.expect("a receipt");
    };
    let (answer, ()) = tokio::join!(boss.ask("expert", "ready", TIMEOUT), answering);
    assert_eq!(answer.expect("an answer"), "yes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_times_out_is_cancelled_at_the_originals_client() {
    let broker = OriginalBroker::start().await;
    let mut theirs = original::subscriber(&broker.endpoint(), original::agent("theirs")).await;
    let boss = mux(&broker.endpoint(), "boss").await;
    let outcome = boss.ask("theirs", "anyone?", Duration::from_millis(300)).await;
    assert!(matches!(outcome, Err(BrokerError::Timeout(_))), "{outcome:?}");
    let ask = original::next(&mut theirs).await;
    assert_eq!(soon(theirs.next_cancel()).await, Some(ask.id));
}
