//! Links between brokers over real sockets: delivery, refusals, and the end of a link.

pub mod background;
mod clustered;
mod ending;
pub mod owner;
mod proxy;
mod raw;
mod refusals;

use crate::mailboxes_contract::client::{Client, delivery, sized};
use background::Background;
use owner::{OwnerOfOne, front_options, open};
use std::sync::Arc;
use toolbus_broker::LinkOptions;
use toolbus_cluster::Slot;

fn check_messages_pass_in_both_directions(is_tls: bool) {
    let background = Background::start();
    let options = LinkOptions { tls: is_tls, ..front_options() };
    let (owner, link) = background.run(async move {
        let owner = OwnerOfOne::with(|setup| setup.is_tls = is_tls).await;
        let link = open(owner.address(), options).await.expect("a link");
        (owner, link)
    });
    let front = Arc::new(Slot::default());
    front.set(Some(link.mailboxes));
    let (ann, bob) = (Client::subscribed(&front, "ann"), Client::subscribed(&owner.core, "bob"));
    ann.deliver_receipted(delivery("bob", "1", 1));
    bob.expect_message("1", 1);
    bob.deliver_receipted(delivery("ann", "2", 2));
    ann.expect_message("2", 1);
    assert_eq!(ann.ack_confirmed("2"), None);
    // A message larger than the window is pushed alone.
    bob.ack("1");
    let large = sized("bob", "3", 3, 3 << 20);
    ann.deliver_receipted(large);
    bob.expect_message("3", 1);
    background.run(owner.owner.stop());
}

#[test]
fn messages_pass_a_link_in_both_directions() {
    check_messages_pass_in_both_directions(false);
}

#[test]
fn messages_pass_a_link_with_tls_in_both_directions() {
    check_messages_pass_in_both_directions(true);
}
