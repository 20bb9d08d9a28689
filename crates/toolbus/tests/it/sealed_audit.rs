//! Sealing and shipping of audit logs, with the real binary and an attacker who rewrites the files.

use crate::mcp_process::python;
use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, signal, toolbus};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

/// Rewrites a log as somebody can who may write all files: replaces a text, and recomputes the chain and the head.
const ATTACKER: &str = r#"
import hashlib, json, pathlib, sys
folder, old, new = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
prev, seq, changed = "0" * 64, 0, 0
for file in sorted(folder.glob("audit-*.jsonl")):
    lines = []
    for line in file.read_text().splitlines():
        fields = line[line.index(",") + 1:line.rindex(',"prev":')]
        changed += old in fields
        seq += 1
        covered = '{"seq":%d,%s,"prev":"%s"' % (seq, fields.replace(old, new), prev)
        prev = hashlib.sha256(covered.encode()).hexdigest()
        lines.append('%s,"hash":"%s"}\n' % (covered, prev))
    file.write_text("".join(lines))
(folder / "head.json").write_text('{"seq":%20d,"hash":"%s","file":"%s"}\n' % (seq, prev, file.name))
print(changed)
"#;

async fn run(folder: &Path, args: &[&str], key: Option<&str>) -> CommandOutput {
    let mut command = toolbus(folder);
    command.args(args).envs(key.map(|key| ("TOOLBUS_AUDIT_KEY", key)));
    CommandOutput::of(soon("the command ends", command.output()).await.expect("it starts"))
}

async fn stop(instance: &mut UpInstance) {
    signal(&instance.child, "TERM").await;
    assert!(soon("exit", instance.child.wait()).await.expect("a status").success());
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn a_log_that_was_rewritten_with_a_new_chain_is_detected_with_the_key() {
    let mut instance = UpInstance::start(&[]).await.settled().await;
    instance.run(&["call", "now"]).await.check(0, &[], &[]);
    instance.run(&["audit", "verify"]).await.check(0, &["not sealed"], &[]);
    let made = instance.run(&["audit", "init-seal", "--json"]).await;
    let made: Value = serde_json::from_str(&made.out).expect("JSON");
    assert_eq!(made["logs"].as_array().map(Vec::len), Some(2), "of the broker and of the host: {made}");
    let key = made["key"].as_str().expect("a key").to_owned();
    instance.run(&["audit", "init-seal"]).await.check(1, &[], &["is sealed already", "hint"]);
    // The running process notices the key.
    soon("the first seals", async {
        while !instance.run(&["audit", "verify", "--key", &key]).await.out.contains("seals are valid") {}
    })
    .await;
    instance.run(&["call", "now"]).await.check(0, &[], &[]);
    stop(&mut instance).await;

    let folder = instance.folder.path();
    let valid = run(folder, &["audit", "verify"], Some(&key)).await;
    valid.check(0, &["seals are valid; 0 lines behind the last seal are not protected"], &[]);
    run(folder, &["audit", "verify"], None).await.check(0, &["sealed; without --key"], &[]);
    run(folder, &["audit", "verify", "--key", "12"], None).await.check(2, &[], &["64 hexadecimal digits"]);
    for file in files(&folder.join("data")) {
        let bytes = std::fs::read(&file).expect("readable");
        assert!(!bytes.windows(key.len()).any(|part| part == key.as_bytes()), "the key is in {}", file.display());
    }

    let log = folder.join("data/toolbus/hosts/host/audit");
    let mut attack = tokio::process::Command::new(python());
    attack.args(["-c", ATTACKER]).arg(&log).args([r#""effect":"allow""#, r#""effect":"deny""#]);
    let attack = soon("the attack", attack.output()).await.expect("it starts");
    assert_eq!(String::from_utf8_lossy(&attack.stdout).trim(), "2", "two calls: {attack:?}");
    run(folder, &["audit", "verify"], None).await.check(0, &["unchanged"], &[]);
    let found = run(folder, &["audit", "verify", "--key", &key], None).await;
    found.check(1, &["PROBLEM", "the seal is not one of this key"], &["1 of 2 audit logs"]);
}

#[tokio::test]
async fn lines_are_shipped_and_an_outage_is_logged_once_and_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let copy = file("mount/audit.jsonl");
    std::fs::write(file("toolbus.toml"), format!("[audit]\nship = 'file:{}'\n", copy.display())).expect("written");
    let log = std::fs::File::create(file("log")).expect("a file");
    let (mount, log_file) = (file("mount"), file("log"));
    let mut instance = UpInstance::start_with_log(folder, &[], Stdio::from(log)).await.settled().await;
    let failing = || async {
        let shown = instance.run(&["audit", "status"]).await;
        shown.check(0, &["lines to be shipped to file:"], &[]);
        shown.out.matches("failing for").count()
    };
    soon("the outage", async { while failing().await < 2 {} }).await;
    std::fs::create_dir(mount).expect("created");
    instance.run(&["call", "now"]).await.check(0, &[], &[]);
    let copied = || std::fs::read_to_string(&copy).unwrap_or_default();
    soon("the call", async {
        while !copied().contains("\"outcome\":\"ok\"") || failing().await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    let status = instance.run(&["audit", "status", "--json"]).await.out;
    for line in status.lines() {
        let status: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&status["sealed"], &status["ship"]["outage"]), (&false.into(), &Value::Null), "{status}");
    }
    stop(&mut instance).await;
    let logged = std::fs::read_to_string(log_file).expect("a log");
    // Once for each of the two logs.
    assert_eq!(logged.matches("audit lines can't be shipped").count(), 2, "{logged}");
    assert_eq!(logged.matches("audit lines are shipped to").count(), 2, "{logged}");
}

#[tokio::test]
async fn a_log_of_another_user_is_not_sealed_because_its_service_could_not_read_the_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("data/toolbus/audit");
    std::fs::create_dir_all(&log).expect("created");
    // Only root can give a folder away.
    if std::os::unix::fs::chown(&log, Some(1), None).is_ok() {
        let refused = run(folder.path(), &["audit", "init-seal"], None).await;
        refused.check(1, &[], &["belongs to another user", "hint"]);
        assert_eq!(refused.out, "", "no key is shown");
        assert!(!log.join("seal.key").exists());
    }
}
