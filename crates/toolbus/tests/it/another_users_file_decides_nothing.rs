//! Configuration, keys, certificates, locks and secrets of another user are refused, at the start and when a service reads
//! them again. Only root can give files to another user, so other users skip these tests.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, toolbus};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const OTHER_USER: u32 = 65_534;
const STRICT: &str = "[roles.local]\nallow = ['**']\n[roles.eve]\nallow = []\n";
const EVIL: &str = "[roles.local]\nallow = ['**']\n[roles.eve]\nallow = ['**']\n";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn give_away(path: &Path) {
    lchown(path, Some(OTHER_USER), None).expect("given away");
}

/// Puts a file in place of another at once.
fn replace(file: &Path, text: &str, change: impl FnOnce(&Path)) {
    let new = file.with_extension("new");
    fs::write(&new, text).expect("writable");
    change(&new);
    fs::rename(&new, file).expect("replaced");
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    soon(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn run(folder: &Path, args: &[&str]) -> CommandOutput {
    let mut command = toolbus(folder);
    CommandOutput::of(soon("the command ends", command.args(args).output()).await.expect("the binary starts"))
}

#[tokio::test]
async fn a_running_service_takes_no_rules_of_another_user_from_the_file_that_it_found() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (file, log) = (folder.path().join("toolbus.toml"), folder.path().join("log"));
    let elsewhere = folder.path().join("elsewhere.toml");
    fs::write(&file, STRICT).expect("writable");
    let stderr = Stdio::from(File::create(&log).expect("a file"));
    let up = UpInstance::start_with_log(folder, &[], stderr).await.settled().await;
    up.run(&["agent", "add", "eve", "--role", "eve", "--token-file", "eve.token"]).await.check(0, &[], &[]);
    let call = ["call", "text_stats", "--arg", "text=a", "--token-file", "eve.token"];
    let lines =
        |part: &str| fs::read_to_string(&log).expect("a log").lines().filter(|line| line.contains(part)).count();
    let refused = || lines("the previous rules stay in force");
    let by_link = |new: &Path| {
        fs::rename(new, &elsewhere).expect("moved");
        symlink(&elsewhere, new).expect("a link");
        give_away(new);
    };
    let by_two_links = |new: &Path| {
        let link = new.with_extension("link");
        fs::rename(new, &elsewhere).expect("moved");
        symlink(&elsewhere, &link).expect("a link");
        give_away(&link);
        symlink(link, new).expect("a link");
    };
    let by_mode = |new: &Path| fs::set_permissions(new, Permissions::from_mode(0o666)).expect("a mode");
    type Way<'a> = (&'a str, &'a dyn Fn(&Path));
    let ways: [Way<'_>; 4] =
        [("owner", &give_away), ("mode", &by_mode), ("link", &by_link), ("two links", &by_two_links)];
    for (n, (way, change)) in ways.into_iter().enumerate() {
        replace(&file, EVIL, change);
        until(way, || refused() == n + 1).await;
        assert_eq!(lines("reloaded the rules"), 0, "{way}");
        let denied = up.run(&call).await;
        assert!(denied.err.contains("error") && denied.out.is_empty(), "{way}: {}{}", denied.out, denied.err);
    }
    // Once per change.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(refused(), ways.len(), "{}", fs::read_to_string(&log).expect("a log"));
    assert_eq!(lines("it is not used, because it belongs to another user (uid 65534)"), 3);
    replace(&file, EVIL, |_| {});
    until("rules of the own file", || lines("reloaded the rules") == 1).await;
    soon("the new right", async { while !up.run(&call).await.err.is_empty() {} }).await;
}

#[tokio::test]
async fn a_running_broker_takes_no_rules_of_another_user() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (file, log) = (folder.path().join("toolbus.toml"), folder.path().join("log"));
    fs::write(&file, STRICT).expect("writable");
    let mut broker = toolbus(folder.path());
    broker.args(["broker", "--listen", "127.0.0.1:0"]).stdout(Stdio::null());
    let _broker = broker.stderr(File::create(&log).expect("a file")).spawn().expect("the binary starts");
    let has = |part: &str| fs::read_to_string(&log).expect("a log").contains(part);
    until("the broker", || folder.path().join("data/toolbus/audit/head.json").exists()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    replace(&file, EVIL, give_away);
    until("the refusal", || has("the previous rules stay in force")).await;
    assert!(!has("reloaded the rules"));
}

#[tokio::test]
async fn files_that_decide_who_is_who_are_refused_at_the_start() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let own = ["own.pem", "jwt.toml", "jwks.toml", "secret.toml", "client.json", "locked.toml"];
    let foreign = ["k", "e.env", "toolbus.lock"];
    for name in own.iter().chain(&foreign) {
        fs::write(path(name), "").expect("writable");
    }
    let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    fs::write(path("own.pem"), pem).expect("writable");
    let jwt = "[auth.jwt]\nissuer = 'i'\naudience = 'a'\n";
    fs::write(path("jwt.toml"), format!("{jwt}keys = ['k']\n")).expect("writable");
    fs::write(path("jwks.toml"), format!("{jwt}jwks_file = 'k'\n")).expect("writable");
    fs::write(path("client.json"), r#"{"mcpServers": {"s": {"command": "true", "envFile": "e.env"}}}"#)
        .expect("writable");
    fs::write(path("toolbus.lock"), r#"{"version": 1, "servers": {}}"#).expect("writable");
    fs::create_dir(path("folder")).expect("a folder");
    symlink(path("folder"), path("link")).expect("a link");
    foreign.iter().chain(&["link"]).for_each(|name| give_away(&path(name)));
    let broker = ["broker", "--listen", "127.0.0.1:0"];
    let named = ["up", "--listen", "127.0.0.1:0", "--config"];
    let tls = |cert, key| [&broker[..], &["--tls-cert", cert, "--tls-key", key]].concat();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = format!("wss://{}/bus", listener.local_addr().expect("an address"));
    let cases: &[(&str, Vec<&str>)] = &[
        ("TB0304", [&named[..], &["jwt.toml"]].concat()),
        ("TB0304", [&named[..], &["jwks.toml"]].concat()),
        ("TB0304", [&named[..], &["locked.toml"]].concat()),
        ("TB0411", ["up", "--listen", "127.0.0.1:0", "--mcp-config", "client.json"].to_vec()),
        ("TB0304", tls("own.pem", "k")),
        ("TB0304", tls("k", "own.pem")),
        ("TB0304", [&tls("own.pem", "own.pem")[..], &["--tls-client-ca", "k"]].concat()),
        ("TB0304", ["ps", "--broker", &port, "--ca-cert", "k", "--token-file", "own.token"].to_vec()),
        ("TB0304", [&broker[..], &["--data", "link"]].concat()),
        ("TB0304", [&broker[..], &["--data", "link/"]].concat()),
        ("TB0304", [&broker[..], &["--data", "link/."]].concat()),
        ("TB0304", [&broker[..], &["--data", "link/data"]].concat()),
        ("TB0304", ["pin", "--lock", "toolbus.lock"].to_vec()),
    ];
    fs::write(path("own.token"), "tb_x").expect("writable");
    fs::create_dir_all(path("data/toolbus/hosts/h")).expect("a folder");
    fs::write(path("data/toolbus/hosts/h/pins.json"), r#"{"version": 1, "servers": {}}"#).expect("writable");
    for (code, args) in cases {
        let refused = run(folder.path(), args).await;
        let err = &refused.err;
        assert!(err.contains(&format!("error[{code}]")), "{args:?}: {err}");
        assert!(err.contains("belongs to another user (uid 65534)"), "{args:?}: {err}");
    }
    assert!(fs::read_dir(path("folder")).expect("a folder").next().is_none(), "nothing was created behind the link");
}

/// Root may use the checkout of another user, whose file it names: what belongs to that file is of the same user.
#[tokio::test]
async fn the_owner_of_a_named_file_is_trusted_with_its_lock_and_its_variables() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("theirs.toml"), "pin = 'lock'\n").expect("writable");
    fs::write(path("toolbus.lock"), r#"{"version": 1, "servers": {}}"#).expect("writable");
    fs::write(path("e.env"), "A=1\n").expect("writable");
    let client = r#"{"mcpServers": {"s": {"command": "cat", "envFile": "e.env"}}}"#;
    fs::write(path("client.json"), client).expect("writable");
    ["theirs.toml", "toolbus.lock", "e.env", "client.json"].iter().for_each(|name| give_away(&path(name)));
    let up = UpInstance::start_in(folder, &["--config", "theirs.toml", "--mcp-config", "client.json"]).await;
    assert!(up.banner.contains("hosting s"), "{}", up.banner);
}

#[tokio::test]
async fn init_follows_no_link_and_writes_a_file_that_only_its_owner_can_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, victim) = (folder.path().join("toolbus.toml"), folder.path().join("victim"));
    fs::write(&victim, "precious").expect("writable");
    symlink(&victim, &file).expect("a link");
    run(folder.path(), &["init"]).await.check(1, &[], &["already exists"]);
    run(folder.path(), &["init", "--force"]).await.check(0, &["wrote toolbus.toml"], &[]);
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "precious");
    assert!(fs::symlink_metadata(&file).expect("a file").is_file());
    for force in ["", "--force"] {
        fs::remove_file(&file).expect("removed");
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &format!("umask 000; \"$0\" init {force}"), env!("CARGO_BIN_EXE_toolbus")]);
        let written = shell.current_dir(folder.path()).output().await.expect("a shell");
        assert!(written.status.success());
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o644, "{force}");
    }
}

#[tokio::test]
async fn copies_of_the_audit_log_are_not_written_through_a_link_of_another_user() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (victim, link, log) =
        (folder.path().join("victim"), folder.path().join("copies.jsonl"), folder.path().join("log"));
    fs::write(&victim, "precious\n").expect("writable");
    symlink(&victim, &link).expect("a link");
    give_away(&link);
    fs::write(folder.path().join("toolbus.toml"), format!("[audit]\nship = 'file:{}'\n", link.display()))
        .expect("writable");
    let stderr = Stdio::from(File::create(&log).expect("a file"));
    let _up = UpInstance::start_with_log(folder, &[], stderr).await;
    until("the refusal", || fs::read_to_string(&log).expect("a log").contains("belongs to another user")).await;
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "precious\n");
}
