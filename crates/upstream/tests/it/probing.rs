//! Probing for the eras that a server supports.

use crate::support::{fake, guarded, soon};
use std::time::Duration;
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, probe};

#[tokio::test]
async fn a_server_is_probed_in_both_eras() {
    for (era, modern) in [("legacy", false), ("modern", true)] {
        let eras = soon(probe(&fake(era), &guarded())).await.expect("server answers");
        assert_eq!((eras.speaks(Era::Modern), eras.speaks(Era::Legacy)), (modern, !modern));
    }
    let eras = soon(probe(&fake("legacy"), &guarded())).await.expect("server answers");
    assert!(eras.legacy.expect("legacy").get().contains(r#""serverInfo":{"name":"fake","version":"1"}"#));
}

#[tokio::test]
async fn a_server_of_no_era_is_distinguished_from_a_silent_one() {
    let error = soon(probe(&fake("neither"), &guarded())).await.expect_err("no era");
    assert!(matches!(error, ServerError::BadMessage { .. }), "{error:?}");

    let options = ConnectionOptions { start_timeout: Duration::from_millis(300), ..guarded() };
    let silent = ServerConfig::stdio("quiet", "sh", &["-c", "echo waiting for nothing >&2; exec sleep 100"]);
    let error = soon(probe(&silent, &options)).await.expect_err("silence");
    assert_eq!(
        error.to_string(),
        "server \"quiet\" did not answer within 300ms; last stderr lines: waiting for nothing"
    );
}

#[tokio::test]
async fn a_server_that_fails_to_start_is_reported() {
    let error = soon(probe(&ServerConfig::stdio("gone", "no-such-command", &[]), &guarded())).await.expect_err("gone");
    assert_eq!(
        error.to_string(),
        "server \"gone\" could not be started: command \"no-such-command\" not found in PATH"
    );
    let error = soon(probe(&ServerConfig::stdio("bad", "sh", &["-c", "echo no token >&2; exit 4"]), &guarded())).await;
    let error = error.expect_err("server exits at once");
    assert_eq!(error.to_string(), "server \"bad\" exited with code 4; last stderr lines: no token");
}
