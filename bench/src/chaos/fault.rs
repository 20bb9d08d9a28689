//! The faults that a run injects, with their names in reports.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillBroker,
    KillHost,
    KillWorker,
    StopBroker,
    StopHost,
    StopWorker,
    PauseBroker,
    PauseHost,
    CutHost,
    CutWorker,
}

impl Fault {
    pub const ALL: [Fault; 10] = [
        Fault::KillBroker,
        Fault::KillHost,
        Fault::KillWorker,
        Fault::StopBroker,
        Fault::StopHost,
        Fault::StopWorker,
        Fault::PauseBroker,
        Fault::PauseHost,
        Fault::CutHost,
        Fault::CutWorker,
    ];
    /// Faults that `--terms` counts.
    pub const STOPS: [Fault; 5] =
        [Fault::StopBroker, Fault::StopHost, Fault::StopWorker, Fault::PauseBroker, Fault::PauseHost];

    pub fn name(self) -> &'static str {
        match self {
            Fault::KillBroker => "broker killed",
            Fault::KillHost => "host killed",
            Fault::KillWorker => "worker killed",
            Fault::StopBroker => "broker stopped (SIGTERM)",
            Fault::StopHost => "host stopped (SIGTERM)",
            Fault::StopWorker => "worker stopped (SIGTERM)",
            Fault::PauseBroker => "broker paused (SIGSTOP)",
            Fault::PauseHost => "host paused (SIGSTOP)",
            Fault::CutHost => "host's link cut",
            Fault::CutWorker => "worker's link cut",
        }
    }
}
