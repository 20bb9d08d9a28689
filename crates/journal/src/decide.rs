//! Decides what to do with an incoming call, from its state in the journal. Hosts and the simulation share this
//! function.

use crate::call_index::{Known, Refused};
use crate::entry::{End, Start};
use crate::log::Location;
use bytestring::ByteString;
use std::sync::Arc;

/// Whether a tool may be run again if the outcome of an earlier attempt is unknown, as configured by the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replay {
    /// The tool must not run twice.
    #[default]
    Never,
    /// The tool is replay-safe.
    Safe,
}

/// What a host does with an incoming call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Run the call.
    Run {
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// The call is running; it will be answered once.
    AlreadyRunning,
    /// The call was answered: send the same answer again.
    Reply {
        /// The id of the message that carries the answer, the same each time.
        reply_id: ByteString,
        /// How the call ended.
        end: End,
        /// The location of the answer.
        reply: Location,
    },
    /// The call was started and its outcome is unknown. Answer with that.
    Unknown(Arc<Start>),
    /// The call was started too often without an answer, or is dead-lettered.
    Poisoned(Arc<Start>),
    /// The id belongs to another call.
    OtherContent {
        /// The tool of the other call.
        tool: String,
    },
}

/// Decides what to do with a call from the result of its lookup.
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
        Ok(Known::DeadLettered(start)) => Decision::Poisoned(start),
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
    fn an_interrupted_call_runs_again_only_if_replay_safe_and_up_to_the_limit() {
        let interrupted = |attempt| Ok(Known::Interrupted(start(attempt)));
        assert_eq!(decide(interrupted(1), Replay::Never, 3), Decision::Unknown(start(1)));
        assert_eq!(decide(interrupted(1), Replay::Safe, 3), Decision::Run { attempt: 2 });
        assert_eq!(decide(interrupted(2), Replay::Safe, 3), Decision::Run { attempt: 3 });
        assert_eq!(decide(interrupted(3), Replay::Safe, 3), Decision::Poisoned(start(3)));
    }

    #[test]
    fn only_a_new_call_runs() {
        for replay in [Replay::Never, Replay::Safe] {
            assert_eq!(decide(Ok(Known::New), replay, 3), Decision::Run { attempt: 1 });
            assert_eq!(decide(Ok(Known::Running(start(1))), replay, 3), Decision::AlreadyRunning);
            assert_eq!(decide(Ok(Known::DeadLettered(start(1))), replay, 3), Decision::Poisoned(start(1)));
            let other = Refused::OtherContent { tool: "write".into() };
            assert_eq!(decide(Err(other), replay, 3), Decision::OtherContent { tool: "write".into() });
        }
    }

    #[test]
    fn an_answered_call_gets_the_same_answer() {
        let reply = Location::Log(toolbus_wal::Location { segment: 1, offset: 2, length: 3 });
        let known = Known::Answered { start: None, end: End::Unknown, reply_id: "r".into(), reply: reply.clone() };
        let expected = Decision::Reply { reply_id: "r".into(), end: End::Unknown, reply };
        assert_eq!(decide(Ok(known), Replay::Safe, 3), expected);
    }
}
