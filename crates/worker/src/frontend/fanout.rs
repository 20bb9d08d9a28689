//! Requests that are sent to every server.

use super::Frontend;
use super::call::Work;
use super::upstream_call::{Purpose, UpstreamCall};
use crate::view::View;
use futures_util::future::join_all;
use std::sync::Arc;
use toolbus_mcp::{Era, Outcome, Raw, empty_object};

/// Sets the log level of every connected server that supports logging. Fails only if all of them fail.
pub fn set_level(frontend: &Arc<Frontend>, view: &Arc<View>, params: Option<Raw>) -> Work {
    let (frontend, view) = (Arc::clone(frontend), Arc::clone(view));
    Work::Gather(Box::pin(async move {
        let targets = view
            .upstreams()
            .iter()
            .filter(|upstream| !upstream.is_out() && upstream.has_capability(Era::Legacy, "logging"));
        let answers = targets.map(|upstream| {
            let (frontend, params) = (&frontend, params.clone());
            async move {
                let request = ("logging/setLevel", params);
                match UpstreamCall::start(frontend, None, upstream, Era::Legacy, request, Purpose::Plain).await {
                    Ok(call) => call.outcome(frontend).await,
                    Err(error) => error.into(),
                }
            }
        });
        let timeout = frontend.worker.options.gather_patience;
        let answers = tokio::time::timeout(timeout, join_all(answers)).await.unwrap_or_default();
        let any_succeeded = answers.iter().any(|answer| matches!(answer, Outcome::Result(_)));
        answers.into_iter().next().filter(|_| !any_succeeded).unwrap_or_else(|| Outcome::Result(empty_object()))
    }))
}
