//! The kind of a message. The broker derives the required right from some kinds and treats the others as opaque.

use bytestring::ByteString;

macro_rules! kinds {
    ($($variant:ident => $text:literal),+ $(,)?) => {
        /// The kind of a message. Unknown kinds are carried unchanged.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum InboxKind {
            $(#[doc = concat!("`", $text, "` on the wire.")] $variant,)+
            /// Any other kind.
            Other(ByteString),
        }

        impl InboxKind {
            /// Returns the kind as on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(word) => word,
                }
            }

            fn known(word: &str) -> Option<Self> {
                match word {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    Task => "task",
    Ask => "ask",
    Handoff => "handoff",
    Reply => "reply",
    McpRequest => "mcp_request",
    McpReply => "mcp_reply",
    McpEvent => "mcp_event",
    Run => "run",
    Event => "event",
    Outcome => "outcome",
    Steer => "steer",
    ApprovalRequest => "approval_request",
    ApprovalReply => "approval_reply",
}

impl<T: Into<ByteString>> From<T> for InboxKind {
    fn from(word: T) -> Self {
        let word = word.into();
        Self::known(&word).unwrap_or(Self::Other(word))
    }
}
