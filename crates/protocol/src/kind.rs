//! The kind of a message. To the broker it is an opaque word; this type only spares us typos.

use bytestring::ByteString;

macro_rules! kinds {
    ($($variant:ident => $text:literal),+ $(,)?) => {
        /// What a message is for. Kinds that this version does not know are carried as they are.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum InboxKind {
            $($variant,)+
            Other(ByteString),
        }

        impl InboxKind {
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
