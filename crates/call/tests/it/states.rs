//! A call in each of the machine's states, for tests about events that can come at any time.

use crate::requests::{call, equal, in_session, replay_safe, task, until};
use crate::support::{Host, Step};
use toolbus_call::Request;

/// What the call `a` waits for; see `State` in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Authorising,
    Accepting,
    AskingToJoin,
    AwaitingReceipt,
    AwaitingAbsence,
    Joined,
    ReadingAnswer,
    AwaitingCaller,
    Parked,
    TaskShare,
    Reserving,
    Ordered,
    Queued,
    Connecting,
    Rechecking,
    Starting,
    Ready,
    Sending,
    Running,
    Cancelling,
    DeadLettering,
    Finishing,
}

/// The deadline of every `a`.
pub const DEADLINE: u64 = 50_000;

/// A host at which the call `a` of `w#2` is in this state, possibly because of an earlier call `x`.
pub fn host_at(at: At) -> Host {
    let mut host = Host::with(|options| match at {
        At::TaskShare | At::Queued => options.servers[0].max_concurrency = 1,
        At::AwaitingCaller => options.caller_grace = Some(120_000),
        At::DeadLettering => options.max_attempts = 1,
        At::Finishing => options.sync_results = true,
        _ => {}
    });
    let plain = || until(DEADLINE, call("w#2", "a"));
    let repeated = || until(DEADLINE, equal("w#2", "a"));
    match at {
        At::Authorising => arrives_held(&mut host, Step::Authorise, plain()),
        At::Accepting => host.arrives(until(DEADLINE, task("w#2", "a"))),
        At::AskingToJoin | At::AwaitingAbsence | At::Joined => {
            host.running(equal("w#1", "x"));
            host.arrives(repeated());
            if at != At::AskingToJoin {
                host.inspected(&[false], &[]);
            }
            if at == At::Joined {
                host.passes(2_000);
                host.inspected(&[false], &[]);
            }
        }
        At::AwaitingReceipt | At::ReadingAnswer => {
            host.running(equal("w#1", "x"));
            host.answers("x", "done");
            if at == At::ReadingAnswer {
                host.receipted("w#1", "x");
            }
            host.arrives(repeated());
            if at == At::ReadingAnswer {
                host.inspected(&[false], &[true]);
                host.passes(2_000);
                host.inspected(&[false], &[true]);
            }
        }
        At::AwaitingCaller => {
            host.arrives(Request { age: 120_000, ..plain() });
            host.followed("w#2", Some(false));
        }
        At::Parked => {
            host.grant.ask = true;
            host.arrives(plain());
        }
        At::TaskShare => {
            host.arrives(task("w#1", "x"));
            host.synced();
            host.synced();
            host.arrives(task("w#2", "a"));
            host.synced();
        }
        At::Reserving => {
            arrives_held(&mut host, Step::Reserve, task("w#2", "a"));
            host.synced();
        }
        At::Ordered => {
            arrives_held(&mut host, Step::Authorise, in_session(call("w#1", "x")));
            host.release(Step::Authorise);
            host.arrives(in_session(plain()));
        }
        At::Queued => {
            host.running(call("w#1", "x"));
            host.arrives(plain());
        }
        At::Connecting => arrives_held(&mut host, Step::Connect, plain()),
        At::Rechecking => arrives_held(&mut host, Step::Recheck, plain()),
        At::Starting => host.arrives(plain()),
        At::Ready => {
            arrives_held(&mut host, Step::Send, in_session(call("w#1", "x")));
            host.synced();
            host.arrives(in_session(plain()));
            host.synced();
        }
        At::Sending => {
            arrives_held(&mut host, Step::Send, plain());
            host.synced();
        }
        At::Running => host.running(plain()),
        At::Cancelling => {
            host.running(plain());
            host.cancels("a");
        }
        At::DeadLettering => {
            host.running(Request { deadline: Some(DEADLINE), ..replay_safe("w#2", "a") });
            host.dies("a");
        }
        At::Finishing => {
            host.running(plain());
            host.answers("a", "done");
        }
    }
    host.seen();
    host
}

fn arrives_held(host: &mut Host, step: Step, request: Request) {
    host.hold(step);
    host.arrives(request);
}

/// For groups of states: what an event does to the call `a`, and what follows when the journal has synced. All 22 states
/// must be named. Afterwards the call is in progress, or nothing of it is left.
#[track_caller]
pub fn check(event: impl Fn(&mut Host), expected: &[(&[At], &[&str], &[&str])]) {
    let named: Vec<At> = expected.iter().flat_map(|(states, ..)| states.iter().copied()).collect();
    assert!(named.len() == 22 && (0..22).all(|at| named.iter().any(|it| *it as usize == at)), "all states");
    let mut problems = Vec::new();
    for (states, now, later) in expected {
        for at in *states {
            let mut host = host_at(*at);
            event(&mut host);
            let at_once = seen(&mut host);
            host.synced();
            let after_sync = seen(&mut host);
            if at_once != *now || after_sync != *later {
                problems.push(format!("{at:?}: {at_once:?}, then {after_sync:?}"));
            }
            let was_open = host.has("a");
            // The call that `a` waited for ends too.
            if host.has("x") {
                host.crashes("x");
            }
            host.synced();
            if !was_open && !host.machine.is_empty() {
                problems.push(format!("{at:?}: something is left"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The effects, but for the ends of follows: `orphans` tests them.
fn seen(host: &mut Host) -> Vec<String> {
    let mut seen = host.seen();
    seen.retain(|effect| !effect.starts_with("unfollow"));
    seen
}
