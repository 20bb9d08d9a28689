//! Runs a command that prints a secret: without a shell, with a time limit, and always terminated.

use super::fetch::{MAX_SECRET_BYTES, within_limit};
use crate::process::lookup;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

const EXEC_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the command's output. Its stderr is not reported, because it may contain the secret.
pub(super) async fn run(words: &[String]) -> Result<Vec<u8>, String> {
    let (program, args) = words.split_first().ok_or("there is no command")?;
    let env = environment();
    let program = lookup::find(program, &env, None).map_err(|error| format!("it could not be started: {error}"))?;
    let mut command = Command::new(program);
    command.env_clear().envs(env).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.kill_on_drop(true).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("it could not be started: {error}"))?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?));
    let Some(stdout) = child.stdout.take() else { return Err("it has no output".to_owned()) };
    let running = async {
        let mut bytes = Vec::new();
        let read = stdout.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut bytes).await;
        read.map_err(|error| format!("its output could not be read: {error}"))?;
        let bytes = within_limit(bytes)?;
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(bytes) } else { Err(format!("it failed: {status}")) }
    };
    let outcome = tokio::time::timeout(EXEC_TIMEOUT, running).await;
    let outcome = outcome.unwrap_or_else(|_| Err(format!("it did not exit within {EXEC_TIMEOUT:?}")));
    if outcome.is_err() {
        // Including its child processes.
        if let Some(group) = group {
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
        }
        child.kill().await.ok();
    }
    outcome
}

/// The host's own, which the commands of password managers need, without the variables of toolbus: they include its token.
fn environment() -> BTreeMap<OsString, OsString> {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"TOOLBUS_");
    std::env::vars_os().filter(|(name, _)| !is_ours(name)).collect()
}

/// Splits a command into words like a shell: white space, quotes and backslashes; nothing else is special. `None` if a
/// quote is not closed or there is no word.
pub(crate) fn split_command(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (Some(_), '\\') => match chars.next()? {
                c @ ('"' | '\\' | '$' | '`') => word.get_or_insert_default().push(c),
                c => word.get_or_insert_default().extend(['\\', c]),
            },
            (None, '\\') => word.get_or_insert_default().push(chars.next()?),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (quote.is_none() && !words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_like_in_a_shell() {
        let check = |text: &str, words: Option<&[&str]>| {
            let split = split_command(text);
            assert_eq!(
                split.as_ref().map(|split| split.iter().map(String::as_str).collect()),
                words.map(<[_]>::to_vec),
                "{text}"
            );
        };
        check("pass show  db/main", Some(&["pass", "show", "db/main"]));
        check(r#"sh -c 'echo "$A" | tr a b'"#, Some(&["sh", "-c", "echo \"$A\" | tr a b"]));
        check(r#"x "a \" b" c\ d ''"#, Some(&["x", "a \" b", "c d", ""]));
        check(r#"x a"b"'c'"#, Some(&["x", "abc"]));
        check("x 'open", None);
        check("  ", None);
    }
}
