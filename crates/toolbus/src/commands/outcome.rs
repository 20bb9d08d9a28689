//! What a tool answered, for whoever reads the command: a person, or a program that wants JSON.

use super::print_line;
use crate::failure::Failure;
use crate::progress::one_line;
use crate::show::show;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use toolbus_mcp::{Members, Outcome, Raw, codes};

/// How it is shown.
pub struct Reader<'a> {
    pub tool: &'a str,
    pub json: bool,
    /// Folder for images and other files.
    pub out: &'a Path,
}

/// The exit code says whether it was the tool's result (0), the tool's or its server's error (1), or the bus's (2).
pub fn report(reader: &Reader<'_>, outcome: Outcome) -> Result<ExitCode, Failure> {
    let result = match outcome {
        Outcome::Result(result) => result,
        Outcome::Error(error) => return report_error(reader.json, &error),
    };
    // Member by member: a number that fits no type of ours must not hide the rest.
    let members = Members::parse(result.get()).map_err(|error| Failure::BadReply(error.to_string()))?;
    if members.text("resultType").as_deref() == Some("input_required") {
        return Err(Failure::InputRequired { tool: reader.tool.to_owned() });
    }
    let is_error = members.get("isError").is_some_and(|flag| flag.get() == "true");
    let code = if is_error { ExitCode::from(1) } else { ExitCode::SUCCESS };
    let value = match serde_json::from_str::<Value>(result.get()) {
        Ok(value) if !reader.json => value,
        _ => {
            print_line(result.get())?;
            return Ok(code);
        }
    };
    let shown = show(reader.tool, &value, reader.out);
    for line in shown.lines {
        if shown.is_error { eprintln!("{line}") } else { print_line(&line)? }
    }
    if shown.is_error {
        eprintln!("error: {} failed", reader.tool);
    }
    // After the rest has been said: a file that can't be written is no reason to lose the text.
    shown.unsaved.map_or(Ok(code), |error| Err(error.into()))
}

fn report_error(json: bool, error: &Raw) -> Result<ExitCode, Failure> {
    let value: Value = serde_json::from_str(error.get()).map_err(|error| Failure::BadReply(error.to_string()))?;
    let by_bus = value["code"] == codes::BUS;
    if json {
        print_line(&format!("{{\"error\":{}}}", error.get()))?;
    }
    let message = one_line(value["message"].as_str().unwrap_or("an error without a message"));
    match value["data"]["code"].as_str() {
        Some(code) => eprintln!("error[{code}]: {message}"),
        None => eprintln!("error: {message} ({})", value["code"]),
    }
    if let Some(hint) = value["data"]["hint"].as_str() {
        eprintln!("hint: {}", one_line(hint));
    }
    Ok(ExitCode::from(if by_bus { 2 } else { 1 }))
}
