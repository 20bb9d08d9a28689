//! Effects as one line each.

use toolbus_call::{Answer, CallNo, Effect, Failure, Millis, Record};
use toolbus_journal::Wait;

/// `park` gives the time that is left.
pub fn describe(effect: &Effect<&'static str>, name: impl Fn(CallNo) -> String, now: Millis) -> String {
    match effect {
        Effect::Admitted { call } => format!("admit {}", name(*call)),
        Effect::Redelivered { call } => format!("redelivered {}", name(*call)),
        Effect::Ignored => "ignored".to_owned(),
        Effect::Acknowledge => "acknowledged".to_owned(),
        Effect::Authorise { call, again: false } => format!("authorise {}", name(*call)),
        Effect::Authorise { call, again: true } => format!("authorise {} again", name(*call)),
        Effect::Park { call, until } => format!("park {} for {}", name(*call), until - now),
        Effect::Unpark { call, expired: true } => format!("unpark {}, expired", name(*call)),
        Effect::Unpark { call, expired: false } => format!("unpark {}", name(*call)),
        Effect::Inspect { peers, replies, .. } => {
            let replies = replies.iter().map(|(mailbox, id)| format!("{mailbox}/{id}"));
            let all: Vec<String> = peers.iter().map(ToString::to_string).chain(replies).collect();
            format!("inspect {}", all.join(" "))
        }
        Effect::Follow { caller } => format!("follow {caller}"),
        Effect::Unfollow { caller } => format!("unfollow {caller}"),
        Effect::Reserve { call } => format!("reserve {}", name(*call)),
        Effect::Connect { call } => format!("connect {}", name(*call)),
        Effect::Append { call, record, wait } => {
            let wait = if *wait == Wait::Synced { "synced" } else { "written" };
            format!("journal {}: {}, {wait}", name(*call), describe_record(record))
        }
        Effect::Send { call } => format!("send {}", name(*call)),
        Effect::CancelAtServer { call, reason: None } => format!("cancel {} at its server", name(*call)),
        Effect::CancelAtServer { call, reason: Some(reason) } => {
            format!("cancel {} at its server: {reason}", name(*call))
        }
        Effect::Abort { call } => format!("abort {}", name(*call)),
        Effect::Accepted { call } => format!("accepted {}", name(*call)),
        Effect::ReadAnswer { call, .. } => format!("read the answer for {}", name(*call)),
        Effect::Reply { call, answer } => format!("reply {}: {}", name(*call), describe_answer(answer)),
        Effect::Resend { call, reply_id, .. } => format!("resend {} {reply_id}", name(*call)),
        Effect::ResendTask { call } => format!("resend task {}", name(*call)),
        Effect::Ended { call, left: true } => format!("left {}", name(*call)),
        Effect::Ended { call, left: false } => format!("ended {}", name(*call)),
        Effect::Breaker { server, change } => format!("breaker {server} {change:?}"),
        Effect::Forward { notification } => format!("forward {}", notification.0),
    }
}

fn describe_record(record: &Record<&'static str>) -> String {
    match record {
        Record::Start { attempt, safe: true } => format!("START {attempt} replay-safe"),
        Record::Start { attempt, safe: false } => format!("START {attempt}"),
        Record::Result { answer, end } => format!("RESULT {end:?} {}", describe_answer(answer)),
        Record::Joined { to } => format!("JOINED to {}", to.id),
        Record::Task => "TASK".to_owned(),
        Record::Dead { attempts, history } => format!("DEAD {attempts} {history:?}"),
    }
}

fn describe_answer(answer: &Answer<&'static str>) -> String {
    match answer {
        Answer::Given(text) => (*text).to_owned(),
        Answer::Joined { to, started_at: Some(_), answer } => format!("{answer} of {}", to.id),
        Answer::Joined { to, started_at: None, answer } => format!("{answer} of {}, which did not start", to.id),
        Answer::Cancelled => "cancelled".to_owned(),
        Answer::HandedBack => "handed back".to_owned(),
        Answer::Failure(failure) => describe_failure(failure),
    }
}

fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::OutcomeUnknown(start) => format!("outcome of attempt {} of {} unknown", start.attempt, start.key.id),
        Failure::JoinedCancelled(start) => format!("joined call {} was cancelled", start.key.id),
        Failure::Unreadable(why) => format!("unreadable: {why}"),
        Failure::Poisoned { attempts } => format!("poisoned after {attempts}"),
        Failure::TimeLimit(which) => format!("time limit of {which}"),
        Failure::Cancelled(reason) => format!("cancelled: {reason}"),
        Failure::TooManyTasks { max, of_agent: true } => format!("more than {max} tasks of the agent"),
        Failure::TooManyTasks { max, of_agent: false } => format!("more than {max} tasks"),
        Failure::RateLimited { wait, .. } => format!("rate limited for {}s", wait.as_secs()),
        Failure::Tripped(wait) => format!("tripped for {}s", wait.as_secs()),
        Failure::IdConflict { tool } => format!("id conflict with {tool}"),
        Failure::NotJournaled(_) => "not journaled".to_owned(),
        Failure::ResultNotJournaled(_) => "result not journaled".to_owned(),
        other => format!("{other:?}"),
    }
}
