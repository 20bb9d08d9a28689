//! Defects that tests inject to prove that the simulation detects them.

/// A defect that breaks a guarantee. Has no effect without the feature `planted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The request is sent before its START is durable.
    StartNotSynced,
    /// The request is sent without a START.
    StartNotWritten,
    /// A request that needs a START is to be sent without one, which the machine itself has to refuse.
    StartSkipped,
    /// The reply is sent before its RESULT is written.
    ResultAfterReply,
    /// No RESULT is written for a call that was cancelled before it started.
    CancelNotWritten,
    /// A call whose deadline has passed is started.
    DeadlineIgnored,
    /// A cancel that arrives while START is written is forgotten.
    CancelLost,
    /// An interrupted call runs again although it is not replay-safe.
    InterruptedRuns,
    /// A call runs again after its server died although it is not replay-safe.
    DiedRuns,
    /// A replay-safe call runs again without limit.
    AttemptsUnlimited,
    /// A call that another journal may have started is treated as new.
    UnsureRuns,
    /// A request that was refused runs when it is delivered again.
    RefusedRuns,
    /// A call joins a call whose caller is connected.
    JoinConnected,
    /// A call joins a call whose answer was collected.
    JoinCollected,
    /// A call does not look for a running call to join.
    RunningNotJoined,
    /// A task is accepted before its entry is durable.
    TaskNotSynced,
    /// The answer of a task is not written.
    TaskAnswerLost,
    /// Calls are started during a drain.
    DrainStarts,
    /// The end of a server at shutdown is reported as an answer.
    ShutdownAnswers,
    /// A call that ended keeps its permits.
    PermitsLeak,
    /// The session order is ignored when requests are sent.
    OrderIgnored,
    /// An orphan is cancelled although another call waits for its answer.
    OrphanWithJoiner,
    /// The return of a caller does not end the grace of its calls.
    CallerBackIgnored,
    /// A call that is not answered in time is not cancelled.
    TimeoutIgnored,
}

impl crate::MachineOptions {
    pub(crate) fn is_planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}
