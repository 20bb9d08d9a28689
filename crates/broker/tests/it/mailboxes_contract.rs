//! What every implementation of [`Mailboxes`] has to do, whoever keeps them. The suite knows nothing but the trait: it is
//! written over a [`Factory`], and a further implementation is one more line at the end of this file.
//!
//! - `arriving`: delivers, receipts, repeated ids.
//! - `pushing`: order, windows, subscribers that come and go.
//! - `settling`: acknowledgements, replies, deadlines, dead letters, restarts.
//! - `signals`: cancels, live events, presence, status, looks.

mod arriving;
mod client;
mod pushing;
mod settling;
mod signals;

use client::Client;
use std::sync::Arc;
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, CoreOptions};
use toolbus_engine::{EngineOptions, Mailboxes};

/// Makes the mailboxes under test.
pub trait Factory {
    type Mailboxes: Mailboxes;

    /// Opens mailboxes that are empty the first time. After the ones before were dropped, they hold what those held.
    fn open(&self, limits: Limits) -> Arc<Self::Mailboxes>;
}

/// Limits that a contract depends on.
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

/// The mailboxes in a folder of this machine.
struct InFolder(TempDir);

impl InFolder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }
}

impl Factory for InFolder {
    type Mailboxes = BrokerCore;

    fn open(&self, limits: Limits) -> Arc<BrokerCore> {
        let Limits { window_messages, window_bytes, mailbox_messages, max_attempts } = limits;
        let engine =
            EngineOptions { window_messages, window_bytes, mailbox_messages, max_attempts, ..EngineOptions::default() };
        BrokerCore::open(self.0.path(), CoreOptions { engine, ..CoreOptions::default() }).expect("the folder opens")
    }
}

/// Runs every contract on fresh mailboxes of one implementation.
macro_rules! holds_for {
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
        holds_for!($implementation, $factory, {
            arriving::{
                a_message_is_pushed_to_its_recipient_and_receipted_to_its_sender,
                every_deliver_has_its_number_whether_accepted_or_refused,
                submitting_leaves_the_list_empty,
                a_repeated_id_is_stored_once_and_receipted_each_time,
                a_repeated_id_with_other_content_or_from_another_sender_is_refused,
                an_id_is_remembered_after_it_was_settled,
                the_same_id_in_two_mailboxes_is_two_messages,
                a_full_mailbox_refuses_and_has_room_again_after_an_ack,
                a_connection_that_left_is_told_nothing_and_says_nothing,
            };
            pushing::{
                messages_arrive_in_the_order_of_their_delivers,
                what_waited_comes_before_what_arrives,
                the_window_bounds_messages_that_are_not_acknowledged,
                the_window_bounds_bytes_and_lets_a_large_message_go_alone,
                what_was_not_acknowledged_comes_again_first_and_counts_its_attempts,
                a_second_subscriber_displaces_the_first,
                subscribing_twice_displaces_nobody,
                whoever_is_not_subscribed_is_pushed_nothing,
            };
            settling::{
                what_is_acknowledged_never_comes_again,
                tags_acknowledge_only_what_was_pushed_to_their_owner,
                acknowledging_twice_is_fine_and_acknowledging_nothing_is_not,
                an_acknowledgement_is_for_one_whole_id,
                a_message_of_another_mailbox_cannot_be_acknowledged,
                a_reply_settles_its_request,
                a_refused_reply_settles_nothing,
                a_message_past_its_deadline_is_gone_and_its_sender_told,
                a_message_pushed_too_often_goes_to_the_dead_letters,
                an_unreadable_message_goes_to_the_dead_letters,
                what_has_a_receipt_outlives_the_mailboxes,
                a_confirmed_acknowledgement_outlives_the_mailboxes,
            };
            signals::{
                a_cancel_reaches_the_subscriber_and_nobody_else,
                a_cancel_takes_back_what_its_sender_has_in_the_queue,
                a_cancel_before_the_receipt_is_answered_instead_of_it,
                what_was_cancelled_in_flight_is_pushed_to_nobody_else,
                a_live_event_carries_its_senders_name_and_is_not_stored,
                an_event_does_not_arrive_after_a_message_that_was_sent_later,
                presence_lists_the_subscribers_of_a_role,
                the_status_counts_what_waits_and_what_is_on_its_way,
                a_look_shows_who_is_there_and_where_messages_stand,
                a_look_shows_what_outlived_the_mailboxes,
                mailboxes_with_nothing_to_do_are_not_congested,
            };
        });
    };
}

mailboxes_contract!(in_folder, InFolder::new());
