//! Tasks: calls that run without their caller. A task is authorised like any call, journaled before its caller gets the
//! task handle, and then runs whether or not its caller is connected. Its answer stays in the journal until the task
//! expires.
//!
//! A task has its own session at its server, because it outlives its caller's. No client answers requests of the
//! server, so none of these capabilities are announced.

mod admin;
mod detached;
mod memory;
mod permits;
mod resume;
mod view;

pub use memory::TaskMemory;
pub use permits::{TaskPermits, reserve_session};

use crate::calls::{Given, NewCall, ParsedCall};
use crate::failure;
use crate::host::Host;
use crate::outbox::Form;
use crate::session::SessionId;
use std::sync::Arc;
use tokio::sync::oneshot;
use toolbus_call::Origin;
use toolbus_mcp::{HostReply, Outcome, Rpc, RpcError, TaskView};
use toolbus_protocol::{ErrorCode, InboxMessage, principal_of};

impl Host {
    /// A request to run as a task, from the mailbox.
    pub async fn begin_task(self: &Arc<Self>, message: Arc<InboxMessage>, rpc: Rpc) {
        match self.task_call(&message, rpc) {
            Ok(new) => {
                let request = self.request_of(&new);
                self.admit(request, new);
            }
            Err(error) => {
                // Its worker may have accepted it while this host was away.
                let agent = principal_of(&message.from.session_id);
                self.task_memory.note_refusal(&message.id, agent, error.clone());
                self.refuse(&message, error).await;
            }
        }
    }

    /// The call of a task, in its own session and without a client.
    fn task_call(&self, message: &Arc<InboxMessage>, rpc: Rpc) -> Result<NewCall, RpcError> {
        let server = self.server(&rpc.server).map(Arc::clone).ok_or_else(|| failure::unknown_server(&rpc.server))?;
        if !toolbus_mcp::has_effect(&rpc.method) {
            return Err(RpcError::invalid_params(format!("{} can't run as a task, only tools/call can", rpc.method)));
        }
        let mut parsed = ParsedCall::new(message, rpc, Form::Mcp);
        parsed.rpc = detached::without_client(parsed.rpc, &SessionId::of_task(&message.id))?;
        Ok(NewCall { request: Arc::clone(message), parsed, server, form: Form::Mcp, operator: None })
    }

    /// Replies with the current state of the task.
    pub async fn resend_task(&self, message: &InboxMessage) {
        let agent = principal_of(&message.from.session_id);
        if let Some(row) = self.options.journal.task(message.id.as_str(), Some(agent)) {
            self.outbox.reply(message, &HostReply::Task(self.view_of_task(&row).into())).await;
        }
    }

    /// Starts a task on behalf of another agent. Returns once it is journaled.
    pub async fn begin_task_for(self: &Arc<Self>, message: InboxMessage, rpc: Rpc) -> Result<TaskView, RpcError> {
        let (operator, accepted) = oneshot::channel();
        let new = NewCall { operator: Some(operator), ..self.task_call(&Arc::new(message), rpc)? };
        let id = new.request.id.clone();
        let request = self.request_from(&new, Origin::Operator, None);
        self.admit(request, new);
        let started = || failure::bus(ErrorCode::CallEnded, format!("the task {id} was already started"));
        accepted.await.unwrap_or_else(|_| Err(started()))
    }
}

/// Turns an `input_required` result of a modern server into an error, because a task has no client to answer it.
pub fn without_input_required(answer: Given) -> Given {
    let Given::Outcome(Outcome::Result(result)) = &answer else { return answer };
    match crate::translate::is_input_required(result) {
        true => detached::no_client_to_ask("the server asked for input").into(),
        false => answer,
    }
}
