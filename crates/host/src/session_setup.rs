//! The host's own requests on a session's connection: its log level and its subscriptions.

use crate::session::Session;
use crate::translate::log_level::LogLevel;
use crate::upstream::Upstream;
use serde_json::json;
use std::time::Duration;
use toolbus_mcp::raw;
use toolbus_upstream::CallEvent;

/// Restores the client's log level and subscriptions on a new connection.
pub async fn restore_session_state(upstream: &Upstream, session: &Session) {
    if let Some(level) = session.level() {
        set_level(upstream, level).await;
    }
    for uri in session.listened_uris() {
        if upstream.add_subscription(&uri) {
            send_setup_request(upstream, "resources/subscribe", json!({"uri": uri})).await;
        }
    }
}

pub async fn set_level(upstream: &Upstream, level: LogLevel) {
    send_setup_request(upstream, "logging/setLevel", json!({"level": level.as_str()})).await;
}

/// How long to wait for the answer to a request of the host itself.
const SETUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends a request whose answer is ignored, and waits for it at most [`SETUP_TIMEOUT`].
pub async fn send_setup_request(upstream: &Upstream, method: &str, params: serde_json::Value) {
    let Ok(mut call) = upstream.connection.start(method, Some(raw(&params))).await else { return };
    let end = async {
        loop {
            match call.next().await {
                CallEvent::Done(_) => return,
                CallEvent::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallEvent::Notification { .. } => {}
            }
        }
    };
    if tokio::time::timeout(SETUP_TIMEOUT, end).await.is_err() {
        tracing::debug!(method, "no answer from the server");
    }
}
