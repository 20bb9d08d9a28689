//! The reasons for which the engine refuses a command or discards a message.

use bytestring::ByteString;

/// Why a command was refused or a message was discarded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The mailbox has reached its limit.
    #[error("mailbox '{mailbox}' is full ({messages} messages, {bytes} bytes pending)")]
    MailboxFull {
        /// The mailbox.
        mailbox: ByteString,
        /// Pending messages in it.
        messages: u64,
        /// Their size.
        bytes: u64,
    },
    /// All mailboxes together have reached their limit.
    #[error("the broker is full ({messages} messages, {bytes} bytes pending)")]
    BrokerFull {
        /// Pending messages in all mailboxes.
        messages: u64,
        /// Their size.
        bytes: u64,
    },
    /// The sending agent has used up its share.
    #[error(
        "your share of the broker is used up (pending: {messages} messages, {bytes} bytes, that you have sent or that answer you)"
    )]
    ShareFull {
        /// Pending messages of the agent.
        messages: u64,
        /// Their size.
        bytes: u64,
    },
    /// The agent owns, or has created by its messages, too many mailboxes.
    #[error("your share of the broker's mailboxes is used up ({mailboxes} that you own or have created)")]
    MailboxShareFull {
        /// Mailboxes of the agent.
        mailboxes: u64,
    },
    /// The id was used before, with other content or by another sender.
    #[error("id '{id}' was already used for another message to '{mailbox}'")]
    IdConflict {
        /// Id of the message.
        id: ByteString,
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The deadline passed before the message was acknowledged.
    #[error("the deadline of message '{id}' to '{mailbox}' has passed")]
    Expired {
        /// Id of the message.
        id: ByteString,
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The message was withdrawn.
    #[error("message '{id}' to '{mailbox}' was withdrawn by its sender")]
    Cancelled {
        /// Id of the message.
        id: ByteString,
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The message was dead-lettered after the maximum number of push attempts.
    #[error("message '{id}' reached the maximum number of push attempts to '{mailbox}' and was dead-lettered")]
    TooOften {
        /// Id of the message.
        id: ByteString,
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The acknowledged id is neither pending nor known as settled.
    #[error("no message '{id}' in your mailbox")]
    UnknownMessage {
        /// Id of the message.
        id: ByteString,
    },
    /// Another connection replaced this subscriber.
    #[error("another connection subscribed to mailbox '{mailbox}'")]
    Displaced {
        /// The mailbox.
        mailbox: ByteString,
    },
    /// The disk is nearly full, or had no room for the message.
    #[error("the broker's disk is nearly full; new messages are refused")]
    DiskFull,
    /// The broker can't create another mailbox.
    #[error("mailbox limit reached ({limit} mailboxes)")]
    TooManyMailboxes {
        /// The limit.
        limit: u64,
    },
    /// The connection can't follow more peers and messages.
    #[error("limit of followed peers and messages reached ({limit})")]
    TooManyFollows {
        /// The limit.
        limit: usize,
    },
    /// The broker accepts no new messages because it is stopping.
    #[error("the broker is stopping")]
    ShuttingDown,
    /// The message can't be encoded for its recipient and was dead-lettered.
    #[error("message '{id}' can't be encoded as JSON and was dead-lettered")]
    Unreadable {
        /// Id of the message.
        id: ByteString,
    },
    /// The dead letter can't be encoded for its reader and was skipped.
    #[error("message '{id}' can't be encoded as JSON; it stays in '{mailbox}'")]
    UnreadableLetter {
        /// Id of the message.
        id: ByteString,
        /// The dead-letter mailbox.
        mailbox: ByteString,
    },
    /// The reply does not belong to a pending request in the sender's mailbox.
    #[error("your mailbox has no pending request '{request}' from '{mailbox}'")]
    NotYourRequest {
        /// Id of the request.
        request: ByteString,
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The sender lacks the right to send this message to this mailbox.
    #[error("you may not send this to '{mailbox}'")]
    MayNotSend {
        /// Mailbox of the recipient.
        mailbox: ByteString,
    },
    /// The command requires a host's credential.
    #[error("your credential does not have the rights of a host")]
    NotAHost,
    /// The command requires an operator's credential.
    #[error("your credential does not have the rights of an operator")]
    OperatorOnly,
}
