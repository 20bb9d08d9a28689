//! Why the engine says no.

use bytestring::ByteString;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("mailbox '{mailbox}' is full ({messages} messages, {bytes} bytes pending)")]
    MailboxFull { mailbox: ByteString, messages: u64, bytes: u64 },
    #[error("the broker is full ({messages} messages, {bytes} bytes pending)")]
    BrokerFull { messages: u64, bytes: u64 },
    #[error("id '{id}' was already used for another message to '{mailbox}'")]
    IdConflict { id: ByteString, mailbox: ByteString },
    #[error("the deadline of message '{id}' to '{mailbox}' has passed")]
    Expired { id: ByteString, mailbox: ByteString },
    #[error("message '{id}' to '{mailbox}' was taken back by its sender")]
    Cancelled { id: ByteString, mailbox: ByteString },
    #[error("message '{id}' was pushed to '{mailbox}' too often; it went to the dead letters")]
    TooOften { id: ByteString, mailbox: ByteString },
    #[error("no message '{id}' in your mailbox")]
    UnknownMessage { id: ByteString },
    #[error("another connection subscribed to mailbox '{mailbox}'")]
    Displaced { mailbox: ByteString },
    #[error("the broker's disk is nearly full; no new messages are taken")]
    DiskFull,
    #[error("the broker holds {limit} mailboxes, its limit")]
    TooManyMailboxes { limit: usize },
    #[error("the broker is stopping")]
    ShuttingDown,
    #[error("message '{id}' cannot be written as JSON; it went to the dead letters")]
    Unreadable { id: ByteString },
    #[error("message '{id}' cannot be written as JSON; it stays in '{mailbox}'")]
    UnreadableLetter { id: ByteString, mailbox: ByteString },
    #[error("no open request '{request}' of '{mailbox}' is in your mailbox")]
    NotYourRequest { request: ByteString, mailbox: ByteString },
    #[error("you may not send this to '{mailbox}'")]
    MayNotSend { mailbox: ByteString },
    #[error("your credential is none for a host")]
    NotAHost,
    #[error("your credential is none for an operator")]
    OperatorOnly,
}
