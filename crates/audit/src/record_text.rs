//! The JSON of records. Those of calls are written by hand: there are two for each call.

use crate::record::{Caller, Record, Subject};
use std::fmt::Write;

/// Appends the members of the record, without the braces of the object.
pub fn push_members(out: &mut String, record: &Record) {
    match record {
        Record::Decision { caller, subject, effect, rule, code } => {
            out.push_str("\"event\":\"decision\"");
            push_call(out, caller, subject);
            push_text(out, ",\"effect\":", effect);
            push_option(out, ",\"rule\":", rule.as_deref());
            if let Some(code) = code {
                push_text(out, ",\"code\":", code);
            }
        }
        Record::Call { caller, subject, end } => {
            out.push_str("\"event\":\"call\"");
            push_call(out, caller, subject);
            push_text(out, ",\"outcome\":", &end.outcome);
            push_number(out, ",\"attempt\":", end.attempt.into());
            push_number(out, ",\"queued_ms\":", end.queued_ms);
            push_number(out, ",\"ran_ms\":", end.ran_ms);
            push_number(out, ",\"request_bytes\":", end.request_bytes);
            push_number(out, ",\"result_bytes\":", end.result_bytes);
        }
        other => {
            let object = serialized(other);
            let members = object.strip_prefix('{').and_then(|members| members.strip_suffix('}'));
            out.push_str(members.expect("a record is an object"));
        }
    }
}

fn push_call(out: &mut String, caller: &Caller, subject: &Subject) {
    push_text(out, ",\"who\":", &caller.who);
    push_option(out, ",\"role\":", caller.role.as_deref());
    push_text(out, ",\"server\":", &subject.server);
    push_text(out, ",\"kind\":", &subject.kind);
    push_option(out, ",\"name\":", subject.name.as_deref());
    push_option(out, ",\"args\":", subject.args.as_deref());
    push_text(out, ",\"request\":", &subject.request);
    if let Some(trace) = &subject.trace {
        push_text(out, ",\"trace\":", trace);
    }
}

fn push_option(out: &mut String, key: &str, text: Option<&str>) {
    match text {
        Some(text) => push_text(out, key, text),
        None => {
            out.push_str(key);
            out.push_str("null");
        }
    }
}

fn push_text(out: &mut String, key: &str, text: &str) {
    out.push_str(key);
    // Without an early end, so that it is vectorised.
    let is_plain = text.bytes().fold(true, |plain, byte| plain & (byte >= 0x20) & (byte != b'"') & (byte != b'\\'));
    if is_plain {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serialized(text));
    }
}

fn push_number(out: &mut String, key: &str, number: u64) {
    write!(out, "{key}{number}").expect("a string takes everything");
}

fn serialized(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("records have string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CallEnd;

    /// The derived form is the format of the log; the written one must be the same.
    fn check(record: &Record) {
        let mut written = String::from("{");
        push_members(&mut written, record);
        written.push('}');
        assert_eq!(written, serialized(record));
    }

    #[test]
    fn records_of_calls_are_written_as_they_are_derived() {
        for text in ["", "plain", "ü\u{7f}", "a\"b\\c", "line\nbreak", "\0"] {
            for other in [None, Some(text.to_owned())] {
                let caller = Caller { who: text.to_owned(), role: other.clone() };
                let subject = Subject {
                    server: text.to_owned(),
                    kind: "tool".to_owned(),
                    name: other.clone(),
                    args: other.clone(),
                    request: text.to_owned(),
                    trace: other.clone(),
                };
                let effect = text.to_owned();
                let (rule, code) = (other.clone(), other.clone());
                check(&Record::Decision { caller: caller.clone(), subject: subject.clone(), effect, rule, code });
                let end = CallEnd {
                    outcome: text.to_owned(),
                    attempt: u32::MAX,
                    queued_ms: 0,
                    ran_ms: 7,
                    ..CallEnd::default()
                };
                let end = CallEnd { request_bytes: u64::MAX, result_bytes: 10, ..end };
                check(&Record::Call { caller, subject, end });
            }
        }
        check(&Record::PolicyReload {});
        check(&Record::ConnectionsRefused { code: "TB0103".into(), count: 7 });
    }
}
