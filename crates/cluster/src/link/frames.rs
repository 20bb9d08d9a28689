//! The frames of a link, and the types of the engine that are in them. The lists name every field, so that the compiler
//! finds one that is added to the engine and missing here.

use super::BadFrame;
use super::codec::{Value, values};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use toolbus_engine::{
    AgentEnd, CancelOutcome, Command, ConnectionView, Delivery, Fingerprint, Follow, FollowView, Inspect, InspectView,
    JournalClaim, MailboxView, Message, MessageAt, MessageView, Outgoing, Peer, Purpose, Refusal, Rights, Sender,
    StatusView,
};

/// A frame from the front to the owner.
#[derive(Debug)]
pub enum ToOwner {
    /// A client has connected to the front.
    Attach { conn: u64, peer: Peer },
    /// Commands of a client.
    Submit { conn: u64, commands: Vec<Command> },
    /// A client has disconnected.
    Detach { conn: u64 },
}

/// A frame from the owner to the front.
#[derive(Debug)]
pub enum ToFront {
    /// Frames for a client.
    Deliver { conn: u64, outgoing: Vec<Outgoing> },
    /// The owner asks to read less, or allows to read again.
    Congested { is_congested: bool },
}

pub fn encode(frame: &impl Value) -> Bytes {
    let mut out = BytesMut::new();
    frame.write(&mut out);
    out.freeze()
}

/// Decodes a frame, which has to end with its last value.
pub fn decode<T: Value>(mut frame: Bytes) -> Result<T, BadFrame> {
    T::read(&mut frame).filter(|_| frame.is_empty()).ok_or(BadFrame)
}

/// Decodes a frame of either direction and encodes it again. `None` if it is not a frame.
#[cfg(feature = "testing")]
pub fn reencode(frame: &[u8], is_to_owner: bool) -> Option<Bytes> {
    let frame = Bytes::copy_from_slice(frame);
    match is_to_owner {
        true => decode::<ToOwner>(frame).ok().map(|frame| encode(&frame)),
        false => decode::<ToFront>(frame).ok().map(|frame| encode(&frame)),
    }
}

values! {
    enum ToOwner {
        1 Attach { conn, peer },
        2 Submit { conn, commands },
        3 Detach { conn },
    }
    enum ToFront {
        1 Deliver { conn, outgoing },
        2 Congested { is_congested },
    }
    enum Command {
        1 Subscribe,
        2 Deliver(delivery),
        3 Numbered { next },
        4 Ack { id },
        5 AckTags { tags },
        6 Passed { tags },
        7 AckWithReceipt { id, request_id },
        8 Cancel { to, correlation_id, request_id },
        9 ListConnected { role },
        10 Event { to, correlation_id, body, batch },
        11 Status { request_id },
        12 Inspect { request_id, inspect },
        13 Follow { request_id, follow },
        14 Unfollow { request_id },
        15 ActAsHost,
        16 Unreadable { message },
        17 Claim { claim },
        18 RefusedRequests { tags },
    }
    enum Outgoing {
        1 Message { message, attempt, deadline_ms },
        2 Unsure { id },
        3 AgentsEnded { agents },
        4 Receipt { number, id },
        5 Refused { refusal, id },
        6 AckResult { id, request_id, refusal },
        7 Cancel { correlation_id, from },
        8 CancelResult { request_id, correlation_id, outcome },
        9 Connected { ids },
        10 Event { from, correlation_id, body, batch },
        11 Status { request_id, view },
        12 Inspected { request_id, view },
        13 Followed { request_id, view },
        14 RefusedSenders { senders },
        15 Moved,
    }
    enum Refusal {
        1 MailboxFull { mailbox, messages, bytes },
        2 BrokerFull { messages, bytes },
        3 ShareFull { messages, bytes },
        4 IdConflict { id, mailbox },
        5 Expired { id, mailbox },
        6 Cancelled { id, mailbox },
        7 TooOften { id, mailbox },
        8 UnknownMessage { id },
        9 Displaced { mailbox },
        10 DiskFull,
        11 TooManyMailboxes { limit },
        12 TooManyFollows { limit },
        13 ShuttingDown,
        14 Unreadable { id },
        15 UnreadableLetter { id, mailbox },
        16 NotYourRequest { request, mailbox },
        17 MayNotSend { mailbox },
        18 NotAHost,
        19 OperatorOnly,
        20 MailboxShareFull { mailboxes },
    }
    enum Purpose {
        1 Request,
        2 HostReply,
        3 Reply,
        4 Event,
        5 Other,
    }
    enum CancelOutcome {
        1 Withdrawn,
        2 Running,
        3 Finished,
        4 Unknown,
    }
}

values! {
    struct Peer { name, role, numbered_receipts, rights, incarnation }
    struct JournalClaim { journal, epoch, instance, ancestors }
    struct Rights { unrestricted, host, operator }
    struct Delivery { to, id, correlation_id, purpose, sealed, content, deadline_ms, ack, age_ms }
    struct Inspect { peers, messages, rows_of }
    struct MessageAt { to, id }
    struct Follow { peers, messages }
    struct Message {
        seq, mailbox, from, id, correlation_id, sealed, fingerprint, content, accepted_at, expires_at,
    }
    struct Sender { name, role }
    struct AgentEnd { name, generation, expired }
    struct StatusView { connections, mailboxes, more_mailboxes, set_aside }
    struct ConnectionView { agent, subscribed, connected_ms }
    struct MailboxView { name, messages, bytes, in_flight, oldest_ms }
    struct InspectView { peers, unknown, messages, settled, remembered_ms, rows, more }
    struct MessageView { id, from, age_ms, attempt, in_flight, deadline_ms }
    struct FollowView { peers, uncollected }
}

impl Value for Fingerprint {
    fn write(&self, out: &mut BytesMut) {
        self.0.iter().for_each(|half| half.write(out));
    }
    fn read(input: &mut Bytes) -> Option<Self> {
        Some(Self([u64::read(input)?, u64::read(input)?]))
    }
}

/// Shared values are copied: each broker has its own.
macro_rules! shared {
    ($($type:ty),*) => {
        $(impl Value for Arc<$type> {
            fn write(&self, out: &mut BytesMut) {
                (**self).write(out);
            }
            fn read(input: &mut Bytes) -> Option<Self> {
                <$type>::read(input).map(Arc::new)
            }
        })*
    };
}
shared!(Message, Sender);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> bytestring::ByteString {
        text.into()
    }

    fn message() -> Arc<Message> {
        Arc::new(Message {
            seq: 1 << 50,
            mailbox: "bob".into(),
            from: Arc::new(Sender { name: "ann".into(), role: Some("reader".into()) }),
            id: text("7"),
            correlation_id: Some(text("6")),
            sealed: Bytes::from_static(b"sealed"),
            fingerprint: Fingerprint([1, 2]),
            content: 3,
            accepted_at: 4,
            expires_at: Some(5),
        })
    }

    fn to_owner() -> Vec<ToOwner> {
        let delivery = Delivery {
            to: text("bob"),
            id: text("7"),
            correlation_id: None,
            purpose: Purpose::HostReply,
            sealed: Bytes::from_static(b"sealed"),
            content: 9,
            deadline_ms: Some(10),
            ack: Some(11),
            age_ms: None,
        };
        let at = MessageAt { to: text("bob"), id: text("7") };
        let inspect = Inspect { peers: vec![text("ann")], messages: vec![at.clone()], rows_of: Some(text("bob")) };
        let follow = Follow { peers: vec![text("ann"), text("bob")], messages: vec![at] };
        let claim =
            JournalClaim { journal: text("j"), epoch: 3, instance: text("i"), ancestors: vec![text("h"), text("g")] };
        let commands = vec![
            Command::Subscribe,
            Command::Deliver(delivery),
            Command::Numbered { next: 12 },
            Command::Ack { id: text("7") },
            Command::AckTags { tags: vec![1, 2, 3] },
            Command::Passed { tags: Vec::new() },
            Command::AckWithReceipt { id: text("7"), request_id: text("r") },
            Command::Cancel { to: text("bob"), correlation_id: text("7"), request_id: None },
            Command::ListConnected { role: text("") },
            Command::Event { to: text("bob"), correlation_id: text("7"), body: Bytes::from_static(b"{}"), batch: true },
            Command::Status { request_id: text("s") },
            Command::Inspect { request_id: text("i"), inspect: Box::new(inspect) },
            Command::Follow { request_id: text("f"), follow: Box::new(follow) },
            Command::Unfollow { request_id: text("f") },
            Command::ActAsHost,
            Command::Unreadable { message: message() },
            Command::Claim { claim: Box::new(claim) },
            Command::RefusedRequests { tags: vec![5] },
        ];
        let peer =
            Peer { name: text("ann"), role: None, numbered_receipts: true, rights: Rights::HOST, incarnation: 7 };
        vec![ToOwner::Attach { conn: 1, peer }, ToOwner::Submit { conn: 2, commands }, ToOwner::Detach { conn: 3 }]
    }

    fn refusals() -> Vec<Refusal> {
        let (id, mailbox) = (text("7"), text("bob"));
        vec![
            Refusal::MailboxFull { mailbox: mailbox.clone(), messages: 1, bytes: 2 },
            Refusal::BrokerFull { messages: 1, bytes: 2 },
            Refusal::ShareFull { messages: 1, bytes: 2 },
            Refusal::IdConflict { id: id.clone(), mailbox: mailbox.clone() },
            Refusal::Expired { id: id.clone(), mailbox: mailbox.clone() },
            Refusal::Cancelled { id: id.clone(), mailbox: mailbox.clone() },
            Refusal::TooOften { id: id.clone(), mailbox: mailbox.clone() },
            Refusal::UnknownMessage { id: id.clone() },
            Refusal::Displaced { mailbox: mailbox.clone() },
            Refusal::DiskFull,
            Refusal::TooManyMailboxes { limit: 3 },
            Refusal::MailboxShareFull { mailboxes: 3 },
            Refusal::TooManyFollows { limit: 4 },
            Refusal::ShuttingDown,
            Refusal::Unreadable { id: id.clone() },
            Refusal::UnreadableLetter { id, mailbox: mailbox.clone() },
            Refusal::NotYourRequest { request: text("r"), mailbox: mailbox.clone() },
            Refusal::MayNotSend { mailbox },
            Refusal::NotAHost,
            Refusal::OperatorOnly,
        ]
    }

    #[test]
    fn refusals_are_the_same_on_the_other_side() {
        for refusal in refusals() {
            assert_eq!(decode(encode(&refusal)), Ok(refusal));
        }
    }

    #[test]
    fn commands_are_the_same_on_the_other_side() {
        for frame in to_owner() {
            let decoded: ToOwner = decode(encode(&frame)).expect("a frame");
            assert_eq!(format!("{decoded:?}"), format!("{frame:?}"));
        }
    }

    #[test]
    fn frames_that_are_cut_or_too_long_are_refused() {
        for frame in to_owner() {
            let encoded = encode(&frame);
            for end in 0..encoded.len() {
                assert!(decode::<ToOwner>(encoded.slice(..end)).is_err(), "{frame:?} cut at {end}");
            }
            let longer = [&encoded[..], &[0]].concat();
            assert!(decode::<ToOwner>(longer.into()).is_err());
        }
    }
}
