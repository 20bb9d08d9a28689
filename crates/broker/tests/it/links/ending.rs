//! When links end: both ends notice, and the clients of the front are disconnected at the owner.

use super::owner::{EPOCH, OWNER, Owned, Owner, OwnerOfOne, OwnerSetup, PARTITION, core, front_options, open};
use super::proxy::Proxy;
use crate::support::{HOUR, within};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use toolbus_broker::{BrokerCore, Link, LinkError, LinkOptions, LocalPartition, LocalPartitions};
use toolbus_cluster::Partition;
use toolbus_engine::{Command, Follow, Mailboxes, Outbox, Outgoing, Peer, Rights};

/// Whether a client of a front is connected at the owner.
struct Presence(watch::Sender<bool>);

impl Outbox for Presence {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        for outgoing in outgoing.drain(..) {
            if let Outgoing::Followed { view, .. } = outgoing {
                self.0.send_replace(view.peers[0]);
            }
        }
    }
}

struct Discard;

impl Outbox for Discard {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        outgoing.clear();
    }
}

fn peer(name: &str) -> Peer {
    Peer { name: name.into(), role: None, numbered_receipts: true, rights: Rights::UNRESTRICTED, incarnation: 0 }
}

/// Connects a client at the front, and follows at the owner whether it is connected.
async fn connect_client(link: &Link, core: &Arc<BrokerCore>) -> watch::Receiver<bool> {
    let (presence, mut is_connected) = watch::channel(false);
    let follower = core.attach(peer("follower"), Arc::new(Presence(presence)));
    let follow = Box::new(Follow { peers: vec!["ann".into()], messages: vec![] });
    core.submit(follower, &mut vec![Command::Follow { request_id: "f".into(), follow }]);
    link.mailboxes.attach(peer("ann"), Arc::new(Discard));
    within("the client at the owner", is_connected.wait_for(|is| *is)).await.expect("followed");
    is_connected
}

async fn expect_end(link: &Link, mut is_connected: watch::Receiver<bool>) {
    within("the end at the front", link.closed.cancelled()).await;
    within("the end at the owner", is_connected.wait_for(|is| !*is)).await.expect("followed");
}

/// Neither end notices silence.
fn no_silence(options: LinkOptions) -> LinkOptions {
    LinkOptions { silence: HOUR, ..options }
}

async fn owner_without_silence() -> OwnerOfOne {
    OwnerOfOne::with(|setup| setup.links.silence = HOUR).await
}

#[tokio::test]
async fn closing_a_partition_ends_its_links_and_refuses_new_ones() {
    let owner = owner_without_silence().await;
    let link = open(owner.address(), no_silence(front_options())).await.expect("a link");
    let is_connected = connect_client(&link, &owner.core).await;
    owner.owner.links.close(Partition(4));
    assert!(!link.closed.is_cancelled());
    owner.owner.links.close(PARTITION);
    expect_end(&link, is_connected).await;
    // The mailboxes are still there.
    let refused = open(owner.address(), front_options()).await;
    assert!(matches!(refused, Err(LinkError::NotOwner { .. })), "{:?}", refused.err());
    owner.partitions.insert(PARTITION, Arc::clone(&owner.core) as Arc<dyn Mailboxes>);
    open(owner.address(), front_options()).await.expect("a link to the partition that is served again");
}

/// Closes the partition as soon as a link has looked it up.
struct ClosedMeanwhile(Owned);

impl LocalPartitions for ClosedMeanwhile {
    fn local(&self, partition: Partition, epoch: u64) -> Option<LocalPartition> {
        let local = self.0.local(partition, epoch);
        self.end_links(partition);
        local
    }

    fn end_links(&self, partition: Partition) {
        self.0.end_links(partition);
    }
}

#[tokio::test]
async fn a_link_that_is_accepted_while_its_partition_is_closed_ends() {
    let (core, _folder) = core();
    let partitions = ClosedMeanwhile(Owned::default());
    partitions.0.insert(PARTITION, core);
    let owner = Owner::start(OwnerSetup::new(Arc::new(partitions))).await;
    match open(owner.address, no_silence(front_options())).await {
        Ok(link) => within("the end at the front", link.closed.cancelled()).await,
        Err(error) => panic!("it is answered before the end is noticed: {error}"),
    }
}

#[tokio::test]
async fn a_lost_connection_ends_the_link() {
    let owner = owner_without_silence().await;
    let proxy = Proxy::start(owner.address()).await;
    let link = open(proxy.address, no_silence(front_options())).await.expect("a link");
    let is_connected = connect_client(&link, &owner.core).await;
    proxy.cut();
    expect_end(&link, is_connected).await;
}

#[tokio::test]
async fn silence_ends_the_link_at_both_ends() {
    let silence = Duration::from_millis(300);
    let owner = OwnerOfOne::with(|setup| setup.links.silence = silence).await;
    let proxy = Proxy::start(owner.address()).await;
    let keepalive = Duration::from_millis(20);
    let link = open(proxy.address, LinkOptions { silence, keepalive, ..front_options() }).await.expect("a link");
    let is_connected = connect_client(&link, &owner.core).await;
    proxy.stop();
    expect_end(&link, is_connected).await;
}

#[tokio::test]
async fn dropping_the_mailboxes_closes_the_link() {
    let owner = owner_without_silence().await;
    let link = open(owner.address(), no_silence(front_options())).await.expect("a link");
    let mut is_connected = connect_client(&link, &owner.core).await;
    let Link { mailboxes, closed } = link;
    drop(mailboxes);
    within("the end at the owner", is_connected.wait_for(|is| !*is)).await.expect("followed");
    assert!(closed.is_cancelled());
}

#[tokio::test]
async fn a_draining_broker_serves_links_until_it_stops() {
    let owner = owner_without_silence().await;
    owner.owner.server.drain();
    let link = open(owner.address(), no_silence(front_options())).await.expect("a link");
    let is_connected = connect_client(&link, &owner.core).await;
    within("the stop", owner.owner.stop()).await;
    expect_end(&link, is_connected).await;
}

/// A front that takes nothing gets no more than the limit.
#[tokio::test]
async fn a_front_that_does_not_read_is_disconnected_at_the_limit() {
    let owner = OwnerOfOne::with(|setup| {
        setup.links = LinkOptions { max_queued_bytes: 1 << 20, silence: HOUR, ..setup.links.clone() };
    })
    .await;
    let proxy = Proxy::start(owner.address()).await;
    let link = open(proxy.address, no_silence(front_options())).await.expect("a link");
    let mut is_connected = connect_client(&link, &owner.core).await;
    let subscribed = link.mailboxes.attach(peer("bob"), Arc::new(Discard));
    link.mailboxes.submit(subscribed, &mut vec![Command::Subscribe]);
    within("the subscription", async { while !status(&owner.core).await.contains(&"bob".to_owned()) {} }).await;
    proxy.stop();
    let sender = owner.core.attach(peer("sender"), Arc::new(Discard));
    let body = bytes::Bytes::from(vec![b' '; 64 << 10]);
    within("the end at the owner", async {
        while *is_connected.borrow_and_update() {
            let event =
                Command::Event { to: "bob".into(), correlation_id: "c".into(), body: body.clone(), batch: false };
            owner.core.submit(sender, &mut vec![event]);
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The subscribed clients at the owner.
async fn status(core: &Arc<BrokerCore>) -> Vec<String> {
    struct Answer(watch::Sender<Option<Vec<String>>>);
    impl Outbox for Answer {
        fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
            for outgoing in outgoing.drain(..) {
                if let Outgoing::Status { view, .. } = outgoing {
                    let subscribed = view.connections.iter().filter(|connection| connection.subscribed);
                    self.0.send_replace(Some(subscribed.map(|connection| connection.agent.name.to_string()).collect()));
                }
            }
        }
    }
    let (sender, mut answer) = watch::channel(None);
    let observer = core.attach(peer("observer"), Arc::new(Answer(sender)));
    core.submit(observer, &mut vec![Command::Status { request_id: "s".into() }]);
    let names = within("a status", answer.wait_for(Option::is_some)).await.expect("answered").clone();
    core.detach(observer);
    names.unwrap_or_default()
}

#[tokio::test]
async fn a_name_is_resolved() {
    let owner = OwnerOfOne::start().await;
    let links = toolbus_broker::Links::new(front_options(), Arc::new(Owned::default()));
    let address = format!("localhost:{}", owner.address().port());
    let link = links.open(OWNER, &address, PARTITION, EPOCH).await.expect("a link");
    assert!(!link.closed.is_cancelled());
}
