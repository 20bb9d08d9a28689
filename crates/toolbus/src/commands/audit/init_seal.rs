//! `toolbus audit init-seal`: creates the sealing keys of the logs that have none.

use super::FolderArgs;
use crate::failure::Failure;
use crate::output::print_line;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use toolbus_audit::{AuditError, AuditLog, VerificationKey};

pub fn run(args: &FolderArgs) -> Result<(), Failure> {
    let folders = args.state.audit_logs()?;
    let unsealed: Vec<&PathBuf> = folders.iter().filter(|folder| !AuditLog::is_sealed(folder)).collect();
    if unsealed.is_empty() {
        return Err(AuditError::Sealed { folder: folders[0].clone() }.into());
    }
    let me = rustix::process::geteuid().as_raw();
    if let Some(foreign) = unsealed.iter().find(|folder| folder.metadata().is_ok_and(|of| of.uid() != me)) {
        return Err(Failure::ForeignAuditLog { folder: foreign.to_path_buf() });
    }
    let key = VerificationKey::generate()?;
    let text = if args.json {
        json!({"key": *key.to_text(), "logs": unsealed}).to_string()
    } else {
        let logs: String = unsealed.iter().map(|folder| format!("  {}\n", folder.display())).collect();
        format!(
            "{}\n\nThis key is shown once. Keep it on another machine: it verifies the seals, and whoever has it can \
             forge them.\nSealed from now on:\n{}",
            *key.to_text(),
            logs.trim_end()
        )
    };
    // Printed first: a log must not be sealed with a key that was lost.
    print_line(&text)?;
    for folder in unsealed {
        AuditLog::start_sealing(folder, &key)?;
    }
    Ok(())
}
