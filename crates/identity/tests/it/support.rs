//! Shared helpers: authenticating with a token, and waiting for a condition.

use std::time::{Duration, Instant};
use toolbus_identity::{AuthRefusal, Authenticator, Credential, Identity};
use toolbus_protocol::{AgentRef, ErrorCode};

/// Longer than any awaited step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

pub fn authenticate_as(
    authenticator: &dyn Authenticator,
    token: &str,
    claimed: AgentRef,
) -> Result<Identity, AuthRefusal> {
    authenticator.authenticate(&Credential { token, certificate: None, claimed: &claimed })
}

/// Authenticates under the credential's own name.
pub fn authenticate(authenticator: &dyn Authenticator, token: &str) -> Result<Identity, AuthRefusal> {
    authenticate_as(authenticator, token, AgentRef::new("~"))
}

pub fn code_of(outcome: Result<Identity, AuthRefusal>) -> Option<ErrorCode> {
    outcome.err().map(|refusal| refusal.code)
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Resident memory of this process.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a VmRSS line");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB");
    kib << 10
}
