//! `toolbus audit status`: size, sealing and shipping of each log.

use super::FolderArgs;
use crate::failure::Failure;
use crate::output::print_line;
use serde_json::json;
use std::path::Path;
use toolbus_audit::{AuditLog, last_seq};
use toolbus_base::now_ms;
use toolbus_ship::ShipState;

pub fn run(args: &FolderArgs) -> Result<(), Failure> {
    for folder in args.state.audit_logs()? {
        print_line(&if args.json { as_json(&folder) } else { as_text(&folder) })?;
    }
    Ok(())
}

/// Number of lines that the target does not have yet.
fn behind(folder: &Path, state: &ShipState) -> u64 {
    last_seq(folder).saturating_sub(state.cursor.seq)
}

fn as_text(folder: &Path) -> String {
    let sealed = if AuditLog::is_sealed(folder) { "sealed" } else { "not sealed" };
    let mut text = format!("{}: {} lines, {sealed}", folder.display(), last_seq(folder));
    let Some(state) = ShipState::read(folder) else { return text };
    let ago = |ms: u64| now_ms().saturating_sub(ms) / 1000;
    text.push_str(&format!("\n  {} lines to be shipped to {}", behind(folder, &state), state.target));
    if let Some(shipped) = state.shipped_ms {
        text.push_str(&format!("; last shipped {} s ago", ago(shipped)));
    }
    if state.missed > 0 {
        text.push_str(&format!("\n  {} lines were removed before they were shipped", state.missed));
    }
    if let Some(outage) = &state.outage {
        text.push_str(&format!("\n  failing for {} s: {}", ago(outage.since_ms), outage.error));
    }
    text
}

fn as_json(folder: &Path) -> String {
    let ship = ShipState::read(folder).map(|state| {
        json!({
            "target": state.target, "shipped_lines": state.cursor.seq, "lag_lines": behind(folder, &state),
            "shipped_ms": state.shipped_ms, "missed_lines": state.missed, "outage": state.outage,
        })
    });
    json!({"folder": folder, "lines": last_seq(folder), "sealed": AuditLog::is_sealed(folder), "ship": ship})
        .to_string()
}
