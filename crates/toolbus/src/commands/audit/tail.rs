//! `toolbus audit tail`: prints the last lines, and new ones.

use super::FolderArgs;
use crate::failure::Failure;
use crate::output::print_line;
use clap::Args;
use serde_json::{Map, Value};
use std::time::Duration;
use toolbus_audit::Tail;

#[derive(Args)]
pub struct TailArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Keep printing new lines.
    #[arg(short, long)]
    follow: bool,
    /// How many existing lines to print.
    #[arg(short = 'n', long, default_value = "20", value_name = "COUNT")]
    lines: usize,
}

const POLL: Duration = Duration::from_millis(200);

pub async fn run(args: &TailArgs) -> Result<(), Failure> {
    let mut tails = Vec::new();
    let mut lines = Vec::new();
    for folder in args.folder.state.audit_logs()? {
        let (tail, read) = Tail::open(&folder, args.lines)?;
        tails.push(tail);
        lines.extend(read);
    }
    in_order(&mut lines);
    for line in &lines[lines.len().saturating_sub(args.lines)..] {
        print_line(&shown(line, args.folder.json))?;
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(POLL).await;
        let mut lines = Vec::new();
        for tail in &mut tails {
            lines.extend(tail.more()?);
        }
        in_order(&mut lines);
        for line in &lines {
            print_line(&shown(line, args.folder.json))?;
        }
    }
}

/// Sorts the lines of several logs by time.
fn in_order(lines: &mut [String]) {
    let time = |line: &String| {
        let line: Option<Map<String, Value>> = serde_json::from_str(line).ok();
        line.and_then(|line| Some(line.get("time")?.as_str()?.to_owned()))
    };
    lines.sort_by_cached_key(time);
}

/// Formats a line for a terminal. Names in a log come from peers, so control characters are escaped.
fn shown(line: &str, as_json: bool) -> String {
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(line);
    let Ok(mut members) = parsed.map_err(drop) else { return format!("{line:?}") };
    if as_json {
        return line.to_owned();
    }
    for chain in ["seq", "prev", "hash"] {
        members.remove(chain);
    }
    let mut take = |name: &str| members.remove(name).map(|value| bare(&value)).unwrap_or_default();
    let mut text = format!("{} {}", take("time"), take("event"));
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        text.push_str(&format!(" {name}={}", bare(value)));
    }
    text
}

fn bare(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"') => {
            text.clone()
        }
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        let line = "{\"seq\":1,\"time\":\"t\",\"event\":\"call\",\"name\":\"a\\u001b[31m\\u202e\",\"prev\":\"\",\"hash\":\"\"}";
        assert_eq!(shown(line, false), "t call name=\"a\\u{1b}[31m\\u{202e}\"");
    }
}
