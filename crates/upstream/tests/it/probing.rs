//! Probing for the eras that a server supports, in the process that becomes the first connection.

use crate::support::{Server, fake, guarded, initialize, probe_eras, script, soon, value};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, probe};

/// A fake server that records its starts in `starts` of the folder.
fn recorded(folder: &Path, era: &str) -> ServerConfig {
    let starts = folder.join("starts").display().to_string();
    ServerConfig::stdio("fake", "python3", &["-u", &script("fake_server.py"), era, &starts])
}

/// The eras that the probe finds, the starts that it needs, and a list over the connection that it keeps.
async fn check_kept(era: &str, expected: Era, starts: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let probed = soon(probe(&recorded(folder.path(), era), &guarded(), initialize())).await.expect("server answers");
    assert!(probed.eras.speaks(expected), "{era}");
    let kept = probed.connection.expect("a connection");
    let server = Server { connection: kept.connection, events: kept.events };
    let listed = value(server.request("tools/list", json!({})).await);
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(500), "{era}");
    let started = std::fs::read_to_string(folder.path().join("starts")).expect("the starts");
    assert_eq!(started.lines().count(), starts, "{era}");
    soon(server.connection.close()).await;
}

#[tokio::test]
async fn the_process_that_answers_the_probe_is_the_first_connection() {
    check_kept("legacy", Era::Legacy, 1).await;
    check_kept("modern", Era::Modern, 1).await;
    check_kept("both", Era::Modern, 1).await;
}

#[tokio::test]
async fn a_server_that_ignores_discover_is_initialized_in_the_same_process() {
    check_kept("mute", Era::Legacy, 1).await;
}

#[tokio::test]
async fn a_server_that_starts_slowly_is_started_once() {
    check_kept("slow", Era::Legacy, 1).await;
}

#[tokio::test]
async fn a_server_that_exits_at_an_unknown_first_message_is_started_again_for_initialize() {
    check_kept("strict", Era::Legacy, 2).await;
}

#[tokio::test]
async fn a_server_is_probed_in_both_eras() {
    for (era, modern, legacy) in [("legacy", false, true), ("modern", true, false)] {
        let eras = probe_eras(&fake(era), &guarded()).await.expect("server answers");
        assert_eq!((eras.modern.is_some(), eras.legacy.is_some()), (modern, legacy));
        assert_eq!(eras.legacy_untried, modern);
    }
    let eras = probe_eras(&fake("legacy"), &guarded()).await.expect("server answers");
    assert!(eras.legacy.expect("legacy").get().contains(r#""serverInfo":{"name":"fake","version":"1"}"#));
}

#[tokio::test]
async fn a_server_of_no_era_is_distinguished_from_a_silent_one() {
    let error = probe_eras(&fake("neither"), &guarded()).await.expect_err("no era");
    assert!(matches!(error, ServerError::BadMessage { .. }), "{error:?}");

    let options = ConnectionOptions { start_timeout: Duration::from_millis(300), ..guarded() };
    let silent = ServerConfig::stdio("quiet", "sh", &["-c", "echo waiting for nothing >&2; exec sleep 100"]);
    let error = probe_eras(&silent, &options).await.expect_err("silence");
    assert_eq!(
        error.to_string(),
        "server \"quiet\" did not start within 300ms; if it needs longer, raise its `start_timeout` or the host's \
         --start-timeout; last stderr lines: waiting for nothing"
    );
}

#[tokio::test]
async fn a_server_that_fails_to_start_is_reported() {
    let error = probe_eras(&ServerConfig::stdio("gone", "no-such-command", &[]), &guarded()).await.expect_err("gone");
    assert_eq!(
        error.to_string(),
        "server \"gone\" could not be started: command \"no-such-command\" not found in the host's PATH; install it, \
         or give its full path as `command`"
    );
    let error = probe_eras(&ServerConfig::stdio("bad", "sh", &["-c", "echo no token >&2; exit 4"]), &guarded()).await;
    let error = error.expect_err("server exits at once");
    assert_eq!(error.to_string(), "server \"bad\" exited with code 4; last stderr lines: no token");
}
