//! A test connection to the mailboxes: submits commands through the trait and reads its outbox.

use bytestring::ByteString;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use toolbus_engine::{
    Command, ConnId, Delivery, Inspect, InspectView, Mailboxes, Message, Outbox, Outgoing, Peer, Purpose, Refusal,
    Rights, StatusView,
};
use toolbus_protocol::{AgentRef, Body, InboxMessage};

const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Client<M: Mailboxes> {
    mailboxes: Arc<M>,
    pub conn: ConnId,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    frames: Mutex<VecDeque<Outgoing>>,
    more: Condvar,
}

impl Outbox for Inbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        self.frames.lock().expect("no panic while holding the lock").extend(outgoing.drain(..));
        self.more.notify_all();
    }
}

/// A message to a mailbox with that content.
pub fn delivery(to: &str, id: &str, content: u64) -> Delivery {
    sized(to, id, content, 0)
}

/// Like [`delivery`], with a body that is larger by `bytes`.
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
        age_ms: None,
    }
}

impl<M: Mailboxes> Client<M> {
    pub fn attach(mailboxes: &Arc<M>, name: &str) -> Self {
        Self::attach_with(mailboxes, name, Rights::UNRESTRICTED)
    }

    pub fn attach_with(mailboxes: &Arc<M>, name: &str, rights: Rights) -> Self {
        let inbox = Arc::new(Inbox::default());
        let role = Some("tester".into());
        let peer = Peer { name: name.into(), role, numbered_receipts: true, rights, incarnation: 0 };
        let conn = mailboxes.attach(peer, inbox.clone());
        Self { mailboxes: Arc::clone(mailboxes), conn, inbox }
    }

    pub fn subscribed(mailboxes: &Arc<M>, name: &str) -> Self {
        let client = Self::attach(mailboxes, name);
        client.submit(Command::Subscribe);
        client
    }

    pub fn submit(&self, command: Command) {
        let mut commands = vec![command];
        self.mailboxes.submit(self.conn, &mut commands);
        assert!(commands.is_empty(), "submit drains the list");
    }

    pub fn detach(self) {
        self.mailboxes.detach(self.conn);
    }

    /// All frames that have arrived, without waiting for more.
    pub fn take_queued(&self) -> Vec<Outgoing> {
        self.inbox.frames.lock().expect("no panic while holding the lock").drain(..).collect()
    }

    /// The next frame.
    pub fn next(&self) -> Outgoing {
        let frames = self.inbox.frames.lock().expect("no panic while holding the lock");
        let (mut frames, _) =
            self.inbox.more.wait_timeout_while(frames, TIMEOUT, |frames| frames.is_empty()).expect("no panic");
        frames.pop_front().expect("a frame arrives in time")
    }

    /// The first frame that `take` accepts; frames before it stay queued.
    fn find<T>(&self, what: &str, take: impl Fn(&Outgoing) -> Option<T>) -> T {
        let frames = self.inbox.frames.lock().expect("no panic while holding the lock");
        let missing = |frames: &mut VecDeque<Outgoing>| !frames.iter().any(|frame| take(frame).is_some());
        let (mut frames, _) = self.inbox.more.wait_timeout_while(frames, TIMEOUT, missing).expect("no panic");
        let found = frames.iter().position(|frame| take(frame).is_some());
        let frame = found.and_then(|index| frames.remove(index));
        frame.and_then(|frame| take(&frame)).unwrap_or_else(|| panic!("{what} did not arrive: {frames:?}"))
    }

    /// Asserts that no unread frame is left once all submitted commands are processed.
    pub fn expect_nothing(&self) {
        self.status();
        let frames = self.inbox.frames.lock().expect("no panic while holding the lock");
        assert!(frames.is_empty(), "{frames:?}");
    }

    pub fn status(&self) -> StatusView {
        self.submit(Command::Status { request_id: "status".into() });
        self.find("a status", |outgoing| match outgoing {
            Outgoing::Status { view, .. } => Some((**view).clone()),
            _ => None,
        })
    }

    pub fn inspect(&self, inspect: Inspect) -> InspectView {
        self.submit(Command::Inspect { request_id: "inspect".into(), inspect: Box::new(inspect) });
        self.find("an inspect response", |outgoing| match outgoing {
            Outgoing::Inspected { view, .. } => Some((**view).clone()),
            _ => None,
        })
    }

    /// The next frame, which `take` has to accept.
    pub fn expect<T>(&self, what: &str, take: impl FnOnce(&Outgoing) -> Option<T>) -> T {
        let outgoing = self.next();
        take(&outgoing).unwrap_or_else(|| panic!("expected {what}, got {outgoing:?}"))
    }

    pub fn deliver(&self, delivery: Delivery) {
        self.submit(Command::Deliver(delivery));
    }

    /// Delivers and waits for the receipt.
    pub fn deliver_receipted(&self, delivery: Delivery) -> u64 {
        let id = delivery.id.clone();
        self.deliver(delivery);
        self.expect_receipt(&id)
    }

    /// Asserts that the next frame is the receipt of that id, and returns its number.
    pub fn expect_receipt(&self, expected: &str) -> u64 {
        self.expect(&format!("the receipt of {expected}"), |outgoing| match outgoing {
            Outgoing::Receipt { number, id } if **id == *expected => Some(*number),
            _ => None,
        })
    }

    /// Asserts that the next frame is that attempt of that message.
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

    /// Acknowledges and waits until the acknowledgement is durable.
    pub fn ack_confirmed(&self, id: &str) -> Option<Refusal> {
        self.submit(Command::AckWithReceipt { id: id.into(), request_id: "ack".into() });
        self.find("the result of an ack", |outgoing| match outgoing {
            Outgoing::AckResult { refusal, .. } => Some(refusal.clone()),
            _ => None,
        })
    }
}
