//! Data and state folders: all that is created in them is for its owner only, whatever the umask, and no symbolic link in
//! them is followed.

use crate::support::{BrokerProcess, soon};
use crate::up::{CommandOutput, signal, toolbus};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::process::Command;

const UMASK_ZERO: &str = "umask 000; exec \"$0\" \"$@\"";
const CONFIG: &str = "[roles.local]\nallow = ['*']\nask = ['now']\n[roles.operator]\napprove = true\n";
/// What the folder must contain at least, so that the tests can't pass because less is created.
const EXPECTED: [&str; 24] = [
    "lock",
    "identity",
    "agents.json",
    "agents.json.lock",
    "token",
    "host.token",
    "operator.token",
    "broker.key",
    "claims.json",
    "audit",
    "audit/lock",
    "audit/head.json",
    "audit/audit-000001.jsonl",
    "audit/seal.key",
    "audit/ship.json",
    "hosts",
    "hosts/names",
    "hosts/host",
    "hosts/host/pins.json",
    "hosts/host/approvals.json",
    "hosts/host/audit/seal.key",
    "hosts/host/journal/identity",
    "hosts/host/journal/epoch",
    "hosts/host/journal/lock",
];

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data/toolbus")
}

/// All paths below a folder, relative to it, with their metadata. Links are listed and not followed.
fn tree(root: &Path) -> BTreeMap<String, fs::Metadata> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("metadata");
            if metadata.is_dir() {
                open.push(entry.path());
            }
            let name = entry.path().strip_prefix(root).expect("it is inside").to_string_lossy().into_owned();
            found.insert(name, metadata);
        }
    }
    found
}

async fn run(folder: &Path, args: &[&str]) -> CommandOutput {
    let mut command = toolbus(folder);
    CommandOutput::of(soon("the command ends", command.args(args).output()).await.expect("the binary starts"))
}

/// The folder of a broker and host that were used and stopped, all started with umask 000.
async fn used_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shipped = folder.path().join("copies.jsonl");
    let config = format!("{CONFIG}[audit]\nship = 'file:{}'\n", shipped.display());
    fs::write(folder.path().join("toolbus.toml"), config).expect("writable");
    let up = toolbus(folder.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", UMASK_ZERO, env!("CARGO_BIN_EXE_toolbus"), "up", "--listen", "127.0.0.1:0"]);
    shell.current_dir(folder.path());
    for (name, value) in up.as_std().get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut up = BrokerProcess::spawn(shell).await;
    let url = up.url();
    let on_bus = |args: &[&'static str]| [args, &["--broker"]].concat();
    let bus = async |args: &[&'static str]| run(folder.path(), &[&on_bus(args)[..], &[&url]].concat()).await;
    soon("the tools", async { while !bus(&["tools"]).await.out.contains("text_stats") {} }).await;
    bus(&["call", "text_stats", "--arg", "text=a"]).await.check(0, &[], &[]);
    run(folder.path(), &["audit", "init-seal"]).await.check(0, &[], &[]);
    let mut asking = toolbus(folder.path());
    let asking = asking.args(["call", "now", "--broker", &url]).stdout(std::process::Stdio::null()).spawn();
    let mut asking = asking.expect("the binary starts");
    let approved = soon("the approval", async {
        loop {
            let listed: serde_json::Value =
                serde_json::from_str(&bus(&["approvals", "--json"]).await.out).unwrap_or_default();
            if let Some(id) = listed["approvals"][0]["id"].as_str() {
                break run(folder.path(), &["approvals", "approve", id, "--broker", &url]).await;
            }
        }
    });
    approved.await.check(0, &[], &[]);
    assert!(soon("the call", asking.wait()).await.expect("a status").success());
    soon("the copies", async {
        while !data_of(folder.path()).join("audit/ship.json").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    signal(&up.child, "TERM").await;
    soon("exit", up.child.wait()).await.expect("a status");
    folder
}

#[tokio::test]
async fn everything_is_created_for_its_owner_only_with_umask_zero() {
    let folder = used_folder().await;
    let data = data_of(folder.path());
    let tree = tree(&data);
    for name in EXPECTED {
        assert!(tree.contains_key(name), "{name} is missing: {:?}", tree.keys());
    }
    for (name, metadata) in &tree {
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.mode() & 0o7777, expected, "{name}");
    }
    let mode = |path: &Path| fs::metadata(path).expect("it exists").mode() & 0o7777;
    assert_eq!((mode(&data), mode(&folder.path().join("data"))), (0o700, 0o700));
}

#[tokio::test]
async fn a_link_in_place_of_any_file_or_folder_is_refused_and_its_target_is_not_touched() {
    let used = used_folder().await;
    for name in tree(&data_of(used.path())).keys() {
        for is_dangling in [false, true] {
            let folder = copy_of(used.path());
            let (path, elsewhere) = (data_of(folder.path()).join(name), folder.path().join("elsewhere"));
            fs::create_dir(&elsewhere).expect("a folder");
            fs::rename(&path, elsewhere.join("target")).expect("moved");
            let target = if is_dangling { "nothing" } else { "target" };
            symlink(elsewhere.join(target), &path).expect("a link");
            let before = contents(&elsewhere);
            let refused = run(folder.path(), &["up", "--listen", "127.0.0.1:0"]).await;
            refused.check(1, &[], &["error[TB0304]", &format!("{name} is a symbolic link"), "hint:"]);
            assert!(contents(&elsewhere) == before, "{name}: the link was followed");
        }
    }
}

/// Commands read single files of the folder, without a broker that has checked all of it.
#[tokio::test]
async fn commands_follow_no_link_in_a_data_folder() {
    let used = used_folder().await;
    let pins: &[&str] = &["pin", "diff"];
    let cases: [(&str, &[&str]); 12] = [
        ("token", &["tools"]),
        ("operator.token", &["ps"]),
        ("broker.key", &["ps"]),
        ("agents.json", &["agent", "list"]),
        ("agents.json.lock", &["agent", "revoke", "local"]),
        ("hosts", pins),
        ("hosts/host", pins),
        ("hosts/host/pins.json", pins),
        ("hosts/host/pins.json", &["pin", "approve", "--all"]),
        ("hosts/host/audit", &["audit", "verify"]),
        ("audit/audit-000001.jsonl", &["audit", "verify"]),
        ("audit/audit-000001.jsonl", &["audit", "tail"]),
    ];
    for (name, args) in cases {
        let folder = copy_of(used.path());
        let (path, target) = (data_of(folder.path()).join(name), folder.path().join("target"));
        fs::rename(&path, &target).expect("moved");
        symlink(&target, &path).expect("a link");
        let refused = run(folder.path(), args).await;
        refused.check(1, &[], &["error[TB0304]", &format!("{name} is a symbolic link"), "hint:"]);
    }
}

/// A link to the folder itself is how systemd provides the folder of a dynamic user.
#[tokio::test]
async fn the_data_folder_itself_may_be_a_link_and_an_open_one_is_closed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::create_dir(&real).expect("a folder");
    fs::set_permissions(&real, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
    symlink(&real, &link).expect("a link");
    let link = link.to_str().expect("text");
    run(folder.path(), &["agent", "add", "bob", "--role", "r", "--data", link]).await.check(0, &["tb_"], &[]);
    assert_eq!(fs::metadata(&real).expect("a folder").mode() & 0o7777, 0o700);
    if fs::metadata(&real).expect("a folder").uid() == 0 {
        chown(real.join("agents.json"), Some(12_345), None).expect("given away");
        let refused = run(folder.path(), &["agent", "list", "--data", link]).await;
        refused.check(1, &[], &["error[TB0304]", "agents.json belongs to another user (uid 12345)", "hint:"]);
    }
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for (name, metadata) in tree(folder) {
        let to = copy.path().join(&name);
        if metadata.is_dir() {
            fs::create_dir_all(&to).expect("a folder");
        } else {
            fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
            fs::copy(folder.join(&name), &to).expect("copied");
        }
    }
    fs::write(copy.path().join("toolbus.toml"), CONFIG).expect("writable");
    copy
}

/// Names, content and times of all files.
fn contents(folder: &Path) -> BTreeMap<String, (Vec<u8>, i64, u32)> {
    let of = |(name, metadata): (String, fs::Metadata)| {
        let bytes = if metadata.is_file() { fs::read(folder.join(&name)).expect("readable") } else { Vec::new() };
        let changed = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        (name, (bytes, changed, metadata.mode()))
    };
    tree(folder).into_iter().map(of).collect()
}
