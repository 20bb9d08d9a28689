//! What to do with a call that comes, by what the journal knows of it. Hosts and the simulation ask the same function.

use crate::book::{Known, Refused};
use crate::entry::{End, Start};
use crate::log::Place;
use bytestring::ByteString;
use std::sync::Arc;

/// Whether a tool may be run again when nobody knows if it ran: the operator's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replay {
    #[default]
    Never,
    Safe,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Run {
        attempt: u32,
    },
    /// The one answer to it will come.
    AlreadyRunning,
    /// It was answered: the same answer goes out again, under the same id.
    Reply {
        reply_id: ByteString,
        end: End,
        reply: Place,
    },
    /// It was begun and nobody knows more. That is the answer.
    Unknown(Arc<Start>),
    /// It was begun too often without an answer.
    Poisoned(Arc<Start>),
    /// The id belongs to another call.
    OtherContent {
        tool: String,
    },
}

pub fn decide(known: Result<Known, Refused>, replay: Replay, max_attempts: u32) -> Decision {
    match known {
        Err(Refused::OtherContent { tool }) => Decision::OtherContent { tool },
        Ok(Known::New | Known::Waiting(_)) => Decision::Run { attempt: 1 },
        Ok(Known::Running(_)) => Decision::AlreadyRunning,
        Ok(Known::Answered { end, reply_id, reply, .. }) => Decision::Reply { reply_id, end, reply },
        Ok(Known::Interrupted(start)) => match replay {
            Replay::Never => Decision::Unknown(start),
            Replay::Safe if start.attempt < max_attempts => Decision::Run { attempt: start.attempt + 1 },
            Replay::Safe => Decision::Poisoned(start),
        },
        Ok(Known::Buried(start)) => Decision::Poisoned(start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::CallKey;

    fn start(attempt: u32) -> Arc<Start> {
        let key = CallKey { caller: "w#1".into(), id: "a".into() };
        let (server, tool) = ("files".into(), "write".into());
        Arc::new(Start { key, server, tool, content: [0; 32], attempt, at: 1, safe: false })
    }

    #[test]
    fn a_call_that_was_interrupted_runs_again_only_if_that_is_safe_and_not_for_ever() {
        let interrupted = |attempt| Ok(Known::Interrupted(start(attempt)));
        assert_eq!(decide(interrupted(1), Replay::Never, 3), Decision::Unknown(start(1)));
        assert_eq!(decide(interrupted(1), Replay::Safe, 3), Decision::Run { attempt: 2 });
        assert_eq!(decide(interrupted(2), Replay::Safe, 3), Decision::Run { attempt: 3 });
        assert_eq!(decide(interrupted(3), Replay::Safe, 3), Decision::Poisoned(start(3)));
    }

    #[test]
    fn only_what_is_new_runs_for_the_first_time() {
        for replay in [Replay::Never, Replay::Safe] {
            assert_eq!(decide(Ok(Known::New), replay, 3), Decision::Run { attempt: 1 });
            assert_eq!(decide(Ok(Known::Running(start(1))), replay, 3), Decision::AlreadyRunning);
            assert_eq!(decide(Ok(Known::Buried(start(1))), replay, 3), Decision::Poisoned(start(1)));
            let other = Refused::OtherContent { tool: "write".into() };
            assert_eq!(decide(Err(other), replay, 3), Decision::OtherContent { tool: "write".into() });
        }
    }

    #[test]
    fn what_was_answered_is_answered_the_same_way() {
        let reply = Place::Log { segment: 1, offset: 2, length: 3 };
        let known = Known::Answered { start: None, end: End::Unknown, reply_id: "r".into(), reply: reply.clone() };
        let expected = Decision::Reply { reply_id: "r".into(), end: End::Unknown, reply };
        assert_eq!(decide(Ok(known), Replay::Safe, 3), expected);
    }
}
