//! Contract tests for implementations of [`Mailboxes`]. The suite uses only the trait and a [`Factory`]; another
//! implementation needs one more line at the end of this file.
//!
//! - `delivering`: delivers, receipts, deduplication.
//! - `pushing`: order, windows, redelivery, displaced subscribers.
//! - `settling`: acknowledgements, replies, deadlines, dead letters, restarts.
//! - `partitioned`: what concerns only mailboxes in several partitions.
//! - `signals`: cancels, live events, presence, status, queue inspection, follows.

pub mod client;
mod delivering;
mod linked;
mod networked;
mod partitioned;
mod pushing;
mod settling;
mod signals;

use client::Client;
use networked::OverSockets;
use std::sync::Arc;
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, CoreOptions};
use toolbus_cluster::{Partition, Router, Slot};
use toolbus_engine::{EngineOptions, Mailboxes};

/// Creates the mailboxes under test.
pub trait Factory {
    type Mailboxes: Mailboxes;

    /// Opens the mailboxes: empty the first time, and with the durable content of the earlier ones after those are
    /// dropped.
    fn open(&self, limits: Limits) -> Arc<Self::Mailboxes>;
}

/// Limits that the contracts depend on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub window_messages: usize,
    pub window_bytes: u64,
    pub mailbox_messages: u64,
    pub max_attempts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window_messages: 1024, window_bytes: 2 << 20, mailbox_messages: 10_000, max_attempts: 32 }
    }
}

/// [`BrokerCore`] in a temporary folder.
struct InFolder(TempDir);

impl InFolder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }
}

impl Factory for InFolder {
    type Mailboxes = BrokerCore;

    fn open(&self, limits: Limits) -> Arc<BrokerCore> {
        BrokerCore::open(self.0.path(), limits.options()).expect("the folder opens")
    }
}

impl Limits {
    fn options(self) -> CoreOptions {
        let Self { window_messages, window_bytes, mailbox_messages, max_attempts } = self;
        let engine =
            EngineOptions { window_messages, window_bytes, mailbox_messages, max_attempts, ..EngineOptions::default() };
        CoreOptions { engine, ..CoreOptions::default() }
    }
}

/// A router over partitions, each of them a [`BrokerCore`] in a folder.
struct InPartitions(TempDir);

impl InPartitions {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn partition(&self, number: u16, limits: Limits) -> Arc<dyn Mailboxes> {
        let options = CoreOptions { first_seq: Partition(number).first_seq(), ..limits.options() };
        let core = BrokerCore::open(&self.0.path().join(number.to_string()), options).expect("the folder opens");
        let slot = Slot::default();
        slot.set(Some(core));
        Arc::new(slot)
    }
}

impl Factory for InPartitions {
    type Mailboxes = Router;

    fn open(&self, limits: Limits) -> Arc<Router> {
        let partitions = (0..PARTITIONS).map(|number| self.partition(number, limits));
        Arc::new(Router::new(partitions.collect()).expect("a number of partitions"))
    }
}

/// The same, but every second partition belongs to another broker and is reached over a link.
struct OverLinks(InPartitions);

impl OverLinks {
    fn new() -> Self {
        Self(InPartitions::new())
    }
}

impl Factory for OverLinks {
    type Mailboxes = Router;

    fn open(&self, limits: Limits) -> Arc<Router> {
        let reached = |number: u16| match number % 2 {
            0 => self.0.partition(number, limits),
            _ => linked::remote(self.0.partition(number, limits)),
        };
        Arc::new(Router::new((0..PARTITIONS).map(reached).collect()).expect("a number of partitions"))
    }
}

/// Enough that most names of the tests are in different ones.
const PARTITIONS: u16 = 5;

/// Runs every contract test on new mailboxes of one implementation.
macro_rules! contract_tests {
    ($implementation:ident, $factory:expr, { $($part:ident::{$($contract:ident),+ $(,)?};)+ }) => {
        mod $implementation {
            use super::*;
            $($(
                #[test]
                fn $contract() {
                    super::$part::$contract(&$factory);
                }
            )+)+
        }
    };
}

macro_rules! mailboxes_contract {
    ($implementation:ident, $factory:expr) => {
        contract_tests!($implementation, $factory, {
            delivering::{
                a_message_is_pushed_to_its_recipient_and_receipted_to_its_sender,
                every_deliver_is_numbered_whether_accepted_or_refused,
                submit_drains_the_list,
                a_duplicate_is_stored_once_and_receipted_each_time,
                a_duplicate_with_other_content_or_sender_is_refused,
                a_duplicate_of_a_settled_message_is_recognised,
                the_same_id_in_two_mailboxes_is_two_messages,
                a_full_mailbox_refuses_and_has_room_again_after_an_ack,
                a_detached_connection_neither_receives_nor_sends,
            };
            pushing::{
                messages_are_pushed_in_deliver_order,
                queued_messages_are_pushed_before_new_ones,
                the_window_bounds_unacknowledged_messages,
                the_window_bounds_bytes_and_a_larger_message_is_pushed_alone,
                unacknowledged_messages_are_redelivered_first_with_attempts,
                a_second_subscriber_displaces_the_first,
                subscribing_twice_displaces_no_connection,
                only_subscribers_are_pushed_to,
            };
            settling::{
                an_acknowledged_message_is_not_redelivered,
                tags_acknowledge_only_messages_pushed_to_that_connection,
                acknowledging_is_idempotent_and_unknown_ids_are_refused,
                an_acknowledgement_matches_the_whole_id,
                a_message_of_another_mailbox_cannot_be_acknowledged,
                a_reply_settles_its_request,
                a_refused_reply_does_not_settle_its_request,
                an_expired_message_is_removed_and_its_sender_notified,
                a_message_pushed_too_often_is_dead_lettered,
                an_unreadable_message_is_dead_lettered,
                receipted_messages_survive_a_restart,
                confirmed_acknowledgements_survive_a_restart,
            };
            signals::{
                a_cancel_reaches_only_the_subscriber,
                a_cancel_withdraws_a_queued_message_of_its_sender,
                a_cancel_before_the_receipt_replaces_it,
                a_message_cancelled_in_flight_is_not_redelivered,
                a_live_event_carries_its_senders_name_and_is_not_stored,
                an_event_is_not_overtaken_by_a_later_message,
                presence_lists_the_subscribers_of_a_role,
                the_status_counts_queued_and_in_flight_messages,
                inspect_shows_connected_peers_and_queue_positions,
                inspect_shows_messages_after_a_restart,
                idle_mailboxes_are_not_congested,
            };
        });
    };
}

mailboxes_contract!(in_folder, InFolder::new());
mailboxes_contract!(in_partitions, InPartitions::new());
mailboxes_contract!(over_links, OverLinks::new());
mailboxes_contract!(over_sockets, OverSockets::new());

/// Contracts of mailboxes that answer before a call returns.
macro_rules! immediate_contract {
    ($implementation:ident, $factory:expr) => {
        contract_tests!($implementation, $factory, {
            signals::{ followers_are_notified_before_attach_and_detach_return };
        });
    };
}

immediate_contract!(in_folder_at_once, InFolder::new());
immediate_contract!(in_partitions_at_once, InPartitions::new());
immediate_contract!(over_links_at_once, OverLinks::new());
