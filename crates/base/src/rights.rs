//! The rights of a connection. `identity` determines them, `engine` checks commands against them.

/// What a credential permits beyond the use of its own mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// One shared secret, as in the original: senders and recipients are not restricted.
    pub unrestricted: bool,
    /// May announce manifests, receive requests and reply to them, and send events to any mailbox.
    pub host: bool,
    /// May see all mailboxes and connections, and send to every mailbox.
    pub operator: bool,
}

impl Rights {
    /// All rights, for a shared token.
    pub const UNRESTRICTED: Self = Self { unrestricted: true, host: true, operator: true };
    /// The rights of a host.
    pub const HOST: Self = Self { unrestricted: false, host: true, operator: false };
    /// No additional rights.
    pub const WORKER: Self = Self { unrestricted: false, host: false, operator: false };
    /// The rights of an operator.
    pub const OPERATOR: Self = Self { unrestricted: false, host: false, operator: true };

    /// Whether the credential identifies a host. A peer with the shared token is one only after it announces manifests.
    pub fn is_known_host(self) -> bool {
        self.host && !self.unrestricted
    }
}
