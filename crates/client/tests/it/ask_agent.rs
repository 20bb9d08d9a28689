//! `ask_agent`: a question without a client at hand.

use crate::support::{soon, until};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use toolbus_broker::{BrokerCore, BrokerServer};
use toolbus_client::{Ask, AskMode, BrokerClient, BrokerError, ask_agent};
use toolbus_protocol::AgentRef;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn overlapping_questions_of_one_agent_share_a_connection() {
    let folder = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/bus", listener.local_addr().unwrap());
    tokio::spawn(BrokerServer::new(BrokerCore::new(folder.path()).unwrap(), "secret").serve(listener));
    let bob = BrokerClient::connect(&url, AgentRef::new("bob"), "secret").await.unwrap();
    bob.subscribe().await.unwrap();
    let ask = |question| ask_agent(&url, AgentRef::new("alice"), "secret", "bob", question, AskMode::Steer, LIMIT);
    let answering = async {
        let (first, second) = (bob.next_message().await.unwrap(), bob.next_message().await.unwrap());
        for ask in [second, first] {
            let Ask { question, mode } = ask.body.to().unwrap();
            assert_eq!(mode, AskMode::Steer);
            bob.answer(&ask, format!("answer to {question}")).await.unwrap();
        }
    };
    let (one, two, ()) = soon("the answers", async { tokio::join!(ask("one"), ask("two"), answering) }).await;
    assert_eq!((one.unwrap(), two.unwrap()), ("answer to one".to_owned(), "answer to two".to_owned()));
    until("the answers to be acknowledged", async || {
        bob.status().await.unwrap().mailboxes.iter().all(|mailbox| mailbox.messages == 0)
    })
    .await;
}

#[tokio::test]
async fn the_timeout_of_a_question_includes_connecting() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/bus", silent.local_addr().unwrap());
    let limit = Duration::from_millis(50);
    let asked = ask_agent(&url, AgentRef::new("alice"), "secret", "bob", "?", AskMode::Query, limit);
    let refused = soon("the timeout", asked).await;
    assert!(matches!(refused, Err(BrokerError::Timeout(_))), "{refused:?}");
}
