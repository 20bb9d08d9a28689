//! What the tests share: asking an authenticator, and waiting without sleeping blindly.

use std::time::{Duration, Instant};
use toolbus_identity::{AuthRefusal, Authenticator, Credential, Identity};
use toolbus_protocol::{AgentRef, ErrorCode};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn ask(of: &dyn Authenticator, token: &str, claimed: AgentRef) -> Result<Identity, AuthRefusal> {
    of.authenticate(&Credential { token, certificate: None, claimed: &claimed })
}

/// Lets the credential choose the name.
pub fn enter(of: &dyn Authenticator, token: &str) -> Result<Identity, AuthRefusal> {
    ask(of, token, AgentRef::new("~"))
}

pub fn code_of(outcome: Result<Identity, AuthRefusal>) -> Option<ErrorCode> {
    outcome.err().map(|refusal| refusal.code)
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What this process holds in memory.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells a process about itself");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the resident size is told");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB");
    kib << 10
}
