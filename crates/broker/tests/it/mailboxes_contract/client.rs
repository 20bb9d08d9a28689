//! One connection to mailboxes, seen from the trait: commands go in, everything else comes out of its outbox.

use bytestring::ByteString;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use toolbus_engine::{
    Command, ConnId, Delivery, Inspect, InspectView, Mailboxes, Message, Outbox, Outgoing, Peer, Purpose, Refusal,
    Rights, StatusView,
};
use toolbus_protocol::{AgentRef, Body, InboxMessage};

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client<M: Mailboxes> {
    mailboxes: Arc<M>,
    pub conn: ConnId,
    arrived: Arc<Arrived>,
}

#[derive(Default)]
struct Arrived {
    frames: Mutex<VecDeque<Outgoing>>,
    more: Condvar,
}

impl Outbox for Arrived {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        self.frames.lock().expect("no panic while it is held").extend(outgoing.drain(..));
        self.more.notify_all();
    }
}

/// A message for a mailbox, whose content is that number.
pub fn delivery(to: &str, id: &str, content: u64) -> Delivery {
    sized(to, id, content, 0)
}

/// The same with that many bytes more.
pub fn sized(to: &str, id: &str, content: u64, bytes: usize) -> Delivery {
    let body = Body::of(&(content, "x".repeat(bytes))).expect("a body");
    let mut message = InboxMessage::new(AgentRef::new("unused"), "task", body);
    message.id = id.into();
    let sealed = message.seal().sealed().clone();
    Delivery {
        to: ByteString::from(to),
        id: ByteString::from(id),
        correlation_id: None,
        purpose: Purpose::Other,
        sealed,
        content,
        deadline_ms: None,
        ack: None,
    }
}

impl<M: Mailboxes> Client<M> {
    pub fn attach(mailboxes: &Arc<M>, name: &str) -> Self {
        let arrived = Arc::new(Arrived::default());
        let (role, rights) = (Some("tester".into()), Rights::UNRESTRICTED);
        let peer = Peer { name: name.into(), role, numbered_receipts: true, rights };
        let conn = mailboxes.attach(peer, arrived.clone());
        Self { mailboxes: Arc::clone(mailboxes), conn, arrived }
    }

    pub fn subscribed(mailboxes: &Arc<M>, name: &str) -> Self {
        let client = Self::attach(mailboxes, name);
        client.submit(Command::Subscribe);
        client
    }

    pub fn submit(&self, command: Command) {
        let mut commands = vec![command];
        self.mailboxes.submit(self.conn, &mut commands);
        assert!(commands.is_empty(), "the list is left empty");
    }

    pub fn detach(self) {
        self.mailboxes.detach(self.conn);
    }

    /// The next that arrives.
    pub fn next(&self) -> Outgoing {
        let frames = self.arrived.frames.lock().expect("no panic while it is held");
        let (mut frames, _) =
            self.arrived.more.wait_timeout_while(frames, PATIENCE, |frames| frames.is_empty()).expect("no panic");
        frames.pop_front().expect("something arrives in time")
    }

    /// The first that arrives of some sort; what comes before it stays where it is.
    fn find<T>(&self, what: &str, take: impl Fn(&Outgoing) -> Option<T>) -> T {
        let frames = self.arrived.frames.lock().expect("no panic while it is held");
        let missing = |frames: &mut VecDeque<Outgoing>| !frames.iter().any(|frame| take(frame).is_some());
        let (mut frames, _) = self.arrived.more.wait_timeout_while(frames, PATIENCE, missing).expect("no panic");
        let found = frames.iter().position(|frame| take(frame).is_some());
        let frame = found.and_then(|place| frames.remove(place));
        frame.and_then(|frame| take(&frame)).unwrap_or_else(|| panic!("{what} does not come: {frames:?}"))
    }

    /// Nothing has arrived that was not looked at, once everything submitted so far is dealt with.
    pub fn expect_nothing(&self) {
        self.status();
        let frames = self.arrived.frames.lock().expect("no panic while it is held");
        assert!(frames.is_empty(), "{frames:?}");
    }

    pub fn status(&self) -> StatusView {
        self.submit(Command::Status { request_id: "status".into() });
        self.find("a status", |outgoing| match outgoing {
            Outgoing::Status { view, .. } => Some((**view).clone()),
            _ => None,
        })
    }

    /// The next that arrives, which has to be of some sort.
    pub fn inspect(&self, inspect: Inspect) -> InspectView {
        self.submit(Command::Inspect { request_id: "inspect".into(), inspect: Box::new(inspect) });
        self.find("what was inspected", |outgoing| match outgoing {
            Outgoing::Inspected { view, .. } => Some((**view).clone()),
            _ => None,
        })
    }

    pub fn expect<T>(&self, what: &str, take: impl FnOnce(&Outgoing) -> Option<T>) -> T {
        let outgoing = self.next();
        take(&outgoing).unwrap_or_else(|| panic!("expected {what}, got {outgoing:?}"))
    }

    pub fn deliver(&self, delivery: Delivery) {
        self.submit(Command::Deliver(delivery));
    }

    /// Delivers and waits for the receipt.
    pub fn deliver_safely(&self, delivery: Delivery) -> u64 {
        let id = delivery.id.clone();
        self.deliver(delivery);
        self.expect_receipt(&id)
    }

    /// The number of the receipt, which comes next and is for that id.
    pub fn expect_receipt(&self, expected: &str) -> u64 {
        self.expect(&format!("the receipt of {expected}"), |outgoing| match outgoing {
            Outgoing::Receipt { number, id } if **id == *expected => Some(*number),
            _ => None,
        })
    }

    /// The next is a message with that id, pushed for that time.
    pub fn expect_message(&self, id: &str, attempt: u32) -> Arc<Message> {
        self.expect(&format!("message {id}, attempt {attempt}"), |outgoing| match outgoing {
            Outgoing::Message { message, attempt: made, .. } if *message.id == *id && *made == attempt => {
                Some(Arc::clone(message))
            }
            _ => None,
        })
    }

    pub fn expect_refusal(&self, about: Option<&str>) -> Refusal {
        self.expect("a refusal", |outgoing| match outgoing {
            Outgoing::Refused { refusal, id } if id.as_deref() == about => Some(refusal.clone()),
            _ => None,
        })
    }

    pub fn ack(&self, id: &str) {
        self.submit(Command::Ack { id: id.into() });
    }

    /// Acknowledges and waits until that is safe.
    pub fn ack_safely(&self, id: &str) -> Option<Refusal> {
        self.submit(Command::AckWithReceipt { id: id.into(), request_id: "ack".into() });
        self.find("the result of an ack", |outgoing| match outgoing {
            Outgoing::AckResult { refusal, .. } => Some(refusal.clone()),
            _ => None,
        })
    }
}
