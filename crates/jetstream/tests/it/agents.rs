//! The agents of several brokers on real servers.

use crate::servers::{Servers, runtime};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tempfile::TempDir;
use toolbus_identity::{AgentInfo, AgentsFolder, NewAgent, ensure_credentials_of_member};
use toolbus_jetstream::{Cluster, SharedAgents};

/// A revocation reaches all brokers within two seconds.
const LIMIT: Duration = Duration::from_secs(2);

/// When the cluster was created.
const CREATED: Duration = Duration::from_secs(1_800_000_000);

struct Broker {
    folder: TempDir,
    agents: AgentsFolder,
    _shared: SharedAgents,
}

async fn broker(cluster: &Cluster) -> Broker {
    let folder = tempfile::tempdir().unwrap();
    let agents = AgentsFolder::new(folder.path());
    let shared = cluster.agents(agents.clone()).await.unwrap();
    ensure_credentials_of_member(folder.path(), UNIX_EPOCH + CREATED).unwrap();
    Broker { folder, agents, _shared: shared }
}

fn agent(broker: &Broker, name: &str) -> Option<AgentInfo> {
    broker.agents.list().unwrap().into_iter().find(|agent| agent.name == name)
}

async fn until(what: &str, limit: Duration, mut is_reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_reached() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn new(name: &str) -> NewAgent<'_> {
    NewAgent { name, role: "reader", ..NewAgent::default() }
}

#[test]
fn an_agent_of_one_broker_is_one_of_all() {
    let Some(servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("agents").await;
        // Each of them creates the local agents before it knows the other's.
        let (a, b) = tokio::join!(broker(&cluster), broker(&cluster));
        for broker in [&a, &b] {
            let is_shared = || {
                agent(broker, "local").is_some_and(|local| local.keys.iter().filter(|key| key.is_valid).count() == 2)
            };
            until("the own tokens of each broker stay valid", LIMIT, is_shared).await;
        }

        a.agents.add(&new("ana")).unwrap();
        until("b knows the agent", LIMIT, || agent(&b, "ana").is_some()).await;
        b.agents.rotate("ana", Duration::ZERO, None).unwrap();
        let is_rotated = |broker: &Broker| {
            let keys = agent(broker, "ana").unwrap().keys;
            keys.len() == 2 && keys.iter().filter(|key| key.is_valid).count() == 1
        };
        until("a knows the new token, and that the old one has ended", LIMIT, || is_rotated(&a)).await;

        b.agents.revoke("ana").unwrap();
        until("the agent is revoked at a", LIMIT, || agent(&a, "ana").unwrap().revoked.is_some()).await;
        let before = agent(&a, "ana").unwrap();
        a.agents.add(&new("ana")).unwrap();
        until("b knows the next agent of the name", LIMIT, || {
            agent(&b, "ana").is_some_and(|ana| ana.revoked.is_none() && ana.created > before.created)
        })
        .await;

        // What a broker missed, it learns when it joins, and the others what it has.
        let c = broker(&cluster).await;
        assert!(agent(&c, "ana").is_some_and(|ana| ana.revoked.is_none()));

        // An older copy of the file ends no agent.
        let file = a.folder.path().join("agents.json");
        let mut text: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        text["agents"].as_array_mut().unwrap().retain(|agent| agent["name"] != "ana");
        toolbus_base::replace_file(&file, text.to_string().as_bytes()).unwrap();
        until("the missing agent is back", LIMIT, || agent(&a, "ana").is_some()).await;
        std::fs::remove_file(&file).unwrap();
        until("and after a loss of the file", LIMIT, || agent(&a, "ana").is_some()).await;
        for broker in [&a, &b, &c] {
            assert!(agent(broker, "ana").is_some_and(|ana| ana.revoked.is_none()));
        }
    });
}

#[test]
fn agents_are_joined_after_all_servers_were_away() {
    let Some(mut servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("agents2").await;
        let (a, b) = (broker(&cluster).await, broker(&cluster).await);
        (0..3).for_each(|victim| servers.kill(victim));
        a.agents.add(&new("ana")).unwrap();
        b.agents.add(&new("bo")).unwrap();
        (0..3).for_each(|victim| servers.restart(victim));
        (0..3).for_each(|victim| servers.wait_until_healthy(victim));
        until("both know both", Duration::from_secs(60), || {
            [&a, &b].iter().all(|broker| ["ana", "bo"].iter().all(|name| agent(broker, name).is_some()))
        })
        .await;
    });
}
