//! What is asked of a host about its calls, its tasks and its dead letters.

use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use toolbus_mcp::{DeskRequest, Outcome};
use toolbus_protocol::{ErrorCode, InboxMessage};

impl Host {
    /// Answers one question. Whoever asks is who the broker says it is.
    pub async fn at_desk(self: &Arc<Self>, message: &InboxMessage, request: DeskRequest) -> Outcome {
        if let Some(outcome) = self.at_task_desk(&message.from, &request).await {
            return outcome;
        }
        failure::bus(ErrorCode::UnknownCall, format!("nothing is known of it: {request:?}")).into()
    }
}
