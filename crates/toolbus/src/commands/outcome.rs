//! Prints the outcome of a tool call, as text or as JSON.

use crate::failure::Failure;
use crate::output::{print_error, print_line};
use crate::show::show;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use toolbus_base::terminal_line;
use toolbus_mcp::{Outcome, Raw, codes};

/// How to print an outcome.
pub struct OutputOptions<'a> {
    pub tool: &'a str,
    pub json: bool,
    /// Folder for images and other files.
    pub out: &'a Path,
}

/// Prints the outcome. The exit code is 0 for a result, 1 for an error of the tool or its server, 2 for an error of the
/// bus.
pub fn report(output: &OutputOptions<'_>, outcome: Outcome) -> Result<ExitCode, Failure> {
    let result = match outcome {
        Outcome::Result(result) => result,
        Outcome::Error(error) => return report_error(output.json, &error),
    };
    // Member by member, because a number that fits no Rust type would make parsing the whole result fail.
    let members = result.members().map_err(|error| Failure::BadReply(error.to_string()))?;
    if members.text("resultType").as_deref() == Some("input_required") {
        return Err(Failure::InputRequired { tool: output.tool.to_owned() });
    }
    let is_error = members.get("isError").is_some_and(|flag| flag.get() == "true");
    let code = if is_error { ExitCode::from(1) } else { ExitCode::SUCCESS };
    let value = match serde_json::from_str::<Value>(result.get()) {
        Ok(value) if !output.json => value,
        _ => {
            print_line(result.get())?;
            return Ok(code);
        }
    };
    let shown = show(output.tool, &value, output.out);
    for line in shown.lines {
        if shown.is_error { print_error(line) } else { print_line(&line)? }
    }
    if shown.is_error {
        print_error(format_args!("error: {} failed", output.tool));
    }
    // After the rest was printed: a file that can't be written must not hide the text.
    shown.unsaved.map_or(Ok(code), |error| Err(error.into()))
}

fn report_error(json: bool, error: &Raw) -> Result<ExitCode, Failure> {
    let value: Value = serde_json::from_str(error.get()).map_err(|error| Failure::BadReply(error.to_string()))?;
    let by_bus = value["code"] == codes::BUS;
    if json {
        print_line(&format!("{{\"error\":{}}}", error.get()))?;
    }
    let message = terminal_line(value["message"].as_str().unwrap_or("an error without a message"));
    match value["data"]["code"].as_str() {
        Some(code) => print_error(format_args!("error[{code}]: {message}")),
        None => print_error(format_args!("error: {message} ({})", value["code"])),
    }
    if let Some(hint) = value["data"]["hint"].as_str() {
        print_error(format_args!("hint: {}", terminal_line(hint)));
    }
    Ok(ExitCode::from(if by_bus { 2 } else { 1 }))
}
