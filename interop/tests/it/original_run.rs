//! A child run of the original over our broker: `run` down, `event` and `outcome` up, settled by confirmed
//! acknowledgements.

use crate::brokers::OurBroker;
use crate::original::{agent, agent_in_role};
use crate::{TOKEN, soon};
use bamboo_broker::BrokerChildLink;
use bamboo_subagent::{ChildFrame, ChildLink, EchoExecutor, ParentFrame, RunSpec, TerminalStatus};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn a_child_run_completes() {
    check_run(json!({"assignment": "ping pong"})).await;
}

/// Such a run sends its events in frames of the original's live lane, which our broker ignores as unknown. The events
/// are lost, which the original allows at any time, but not the outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_run_with_live_events_completes() {
    check_run(json!({
        "assignment": "ping pong",
        "logical_session": {"session_id": "session", "parent_session_id": "parent", "root_session_id": "parent"},
        "activation_run_id": "activation",
        "execution_epoch": 7,
    }))
    .await;
}

async fn check_run(run: Value) {
    let broker = OurBroker::start().await;
    let endpoint = broker.endpoint();
    let child = agent_in_role("child", "worker");
    let serving = endpoint.clone();
    tokio::spawn(async move { bamboo_broker::serve_executor(&serving, child, TOKEN, Arc::new(EchoExecutor)).await });

    let connecting = BrokerChildLink::connect(&endpoint, agent("p-child"), TOKEN, "child");
    let mut link = soon(connecting).await.expect("a link");
    let run: RunSpec = serde_json::from_value(run).expect("a run");
    soon(link.send(ParentFrame::Run(run))).await.expect("sent");
    let (status, result) = loop {
        let frame = soon(link.next_frame()).await.expect("no error").expect("an outcome before the end");
        if let ChildFrame::Terminal { status, result, .. } = frame {
            break (status, result);
        }
    };
    assert_eq!(status, TerminalStatus::Completed);
    assert!(result.expect("a result").contains("ping pong"));
    link.accept_durable_terminal(status);
    soon(BrokerChildLink::acknowledge_durable_frames(&mut link)).await.expect("acknowledged");
}
