//! Which eras a server speaks, found by asking.

use crate::support::{fake, guarded, soon};
use std::time::Duration;
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, probe};

#[tokio::test]
async fn a_server_is_asked_in_both_eras() {
    for (era, modern) in [("legacy", false), ("modern", true)] {
        let eras = soon(probe(&fake(era), &guarded())).await.expect("it answers");
        assert_eq!((eras.speaks(Era::Modern), eras.speaks(Era::Legacy)), (modern, !modern));
    }
    let eras = soon(probe(&fake("legacy"), &guarded())).await.expect("it answers");
    assert!(eras.legacy.expect("legacy").get().contains(r#""serverInfo":{"name":"fake","version":"1"}"#));
}

#[tokio::test]
async fn a_server_of_no_era_is_told_from_one_that_is_silent() {
    let error = soon(probe(&fake("neither"), &guarded())).await.expect_err("no era");
    assert!(matches!(error, ServerError::BadMessage { .. }), "{error:?}");

    let options = ConnectionOptions { start_timeout: Duration::from_millis(300), ..guarded() };
    let silent = ServerConfig::stdio("quiet", "sh", &["-c", "echo waiting for nothing >&2; exec sleep 100"]);
    let error = soon(probe(&silent, &options)).await.expect_err("silence");
    assert_eq!(error.to_string(), "server \"quiet\" gave no answer within 300ms; its last words: waiting for nothing");
}

#[tokio::test]
async fn a_server_that_can_not_start_is_said_to_be_so() {
    let error = soon(probe(&ServerConfig::stdio("gone", "no-such-command", &[]), &guarded())).await.expect_err("gone");
    assert_eq!(
        error.to_string(),
        "server \"gone\" could not be started: there is no command \"no-such-command\" in PATH"
    );
    let error = soon(probe(&ServerConfig::stdio("bad", "sh", &["-c", "echo no token >&2; exit 4"]), &guarded())).await;
    let error = error.expect_err("it ends at once");
    assert_eq!(error.to_string(), "server \"bad\" ended: it exited with code 4; its last words: no token");
}
