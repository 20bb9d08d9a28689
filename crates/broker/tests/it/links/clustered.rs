//! Links to the partitions of [`ClusterMailboxes`], while these are closed, suspended and resumed.

use super::owner::{EPOCH, OWNER, Owned, Owner, OwnerSetup, PARTITION, front_options, open};
use crate::support::within;
use std::sync::Arc;
use tempfile::TempDir;
use toolbus_broker::{ClusterMailboxes, ClusterMailboxesOptions, CoreOptions, LinkError, Links, StoredDirectory};
use toolbus_cluster::Partitions;
use toolbus_store::{FolderDisk, Identity};

struct Member {
    owner: Owner,
    mailboxes: Arc<ClusterMailboxes>,
    _folder: TempDir,
}

impl Member {
    /// A broker of a cluster that owns [`PARTITION`] since [`EPOCH`].
    async fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let hosts = StoredDirectory::in_folder(folder.path(), 1).expect("a directory");
        let mailboxes = ClusterMailboxes::new(ClusterMailboxesOptions {
            identity: Identity { id: "cluster".into(), seed: 1 },
            partitions: Partitions::new(5).expect("a number of partitions"),
            hosts: Arc::new(hosts),
            core: CoreOptions::default(),
        });
        let (disk, _) = FolderDisk::open(&folder.path().join("3")).expect("the folder opens");
        mailboxes.own(PARTITION, EPOCH);
        mailboxes.open(PARTITION, EPOCH, Arc::new(disk)).expect("the partition opens");
        let owner = Owner::start(OwnerSetup::new(Arc::clone(&mailboxes) as _)).await;
        Self { owner, mailboxes, _folder: folder }
    }

    async fn expect_no_link(&self) {
        let refused = open(self.owner.address, front_options()).await;
        assert!(matches!(refused, Err(LinkError::NotOwner { .. })), "{:?}", refused.err());
    }
}

#[tokio::test]
async fn a_partition_has_links_only_in_its_epoch() {
    let member = Member::start().await;
    let links = Links::new(front_options(), Arc::new(Owned::default()));
    let address = member.owner.address.to_string();
    for epoch in [EPOCH - 1, EPOCH + 1] {
        let refused = links.open(OWNER, &address, PARTITION, epoch).await;
        assert!(matches!(refused, Err(LinkError::NotOwner { .. })), "{:?}", refused.err());
    }
}

#[tokio::test]
async fn a_suspended_partition_has_no_links_until_it_is_resumed() {
    let member = Member::start().await;
    let link = open(member.owner.address, front_options()).await.expect("a link");
    member.owner.links.close(PARTITION);
    within("the end of the link", link.closed.cancelled()).await;
    // Between the two calls, the mailboxes are still served.
    member.expect_no_link().await;
    member.mailboxes.suspend(PARTITION);
    member.expect_no_link().await;
    member.mailboxes.resume(PARTITION);
    open(member.owner.address, front_options()).await.expect("a link after it is resumed");
}

#[tokio::test]
async fn a_partition_ends_its_links_itself() {
    let member = Member::start().await;
    let link = open(member.owner.address, front_options()).await.expect("a link");
    member.mailboxes.suspend(PARTITION);
    within("the end by suspending", link.closed.cancelled()).await;
    member.mailboxes.resume(PARTITION);
    let link = open(member.owner.address, front_options()).await.expect("a link");
    // Not suspended before: the links stay, and still end with the partition.
    member.mailboxes.resume(PARTITION);
    assert!(!link.closed.is_cancelled());
    member.mailboxes.withdraw(PARTITION, None).expect("it was owned").close();
    within("the end by closing", link.closed.cancelled()).await;
    member.expect_no_link().await;
}
