//! Tasks owned by the bus, for servers without tasks of their own. The host stores them; the frontend creates them from
//! tool calls and translates them into the client's era.
//!
//! A task id contains the host's name, so that any worker of the same agent can resolve it, also after a restart.

mod admin;
mod create;
mod list;
pub mod offer;
mod wire;

pub use create::{TaskRequest, create, task_request};

use super::call::Work;
use super::route::IncomingRequest;
use crate::error;
use crate::view::View;
use std::sync::Arc;
use toolbus_mcp::{Era, NameKey, RpcError, TaskName, routed_name};

/// The methods of the tasks extension, which a client may use only if it has declared the extension.
const MODERN_METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

/// Answers a request about tasks of the bus. Returns any other request as `Err`.
pub fn answer<'a>(incoming: IncomingRequest<'a>, view: &Arc<View>) -> Result<Work, IncomingRequest<'a>> {
    if incoming.method == "tasks/list" && incoming.era == Era::Legacy {
        let at_server = view.sole().is_some_and(|upstream| upstream.has_own_tasks(Era::Legacy));
        return if at_server { Err(incoming) } else { Ok(list::list(incoming.frontend, view, incoming.params)) };
    }
    let task = match routed_name(incoming.method, incoming.params.as_ref()) {
        Some(NameKey::Task(task)) => Some(task),
        _ => None,
    };
    // A server may be a gateway to another bus whose task ids have the same format.
    let owner = |task: &String| incoming.frontend.worker.owner(view, &NameKey::Task(task.clone()));
    let at_server = view.sole().is_some_and(|upstream| upstream.declares_tasks(incoming.era))
        || task.as_ref().and_then(owner).is_some();
    if at_server {
        return Err(incoming);
    }
    let needs_extension = incoming.era == Era::Modern && MODERN_METHODS.contains(&incoming.method);
    if needs_extension && !wire::declares_tasks(incoming.params.as_ref()) {
        return Ok(Work::Ready(Some(error::tasks_not_declared().into())));
    }
    let Some((text, name)) = task.and_then(|text| TaskName::parse(&text).map(|name| (text, name))) else {
        return Err(incoming);
    };
    let (frontend, era) = (Arc::clone(incoming.frontend), incoming.era);
    if !frontend.worker.knows_host(&name.host) {
        return Ok(Work::Ready(Some(error::unknown_task(&text).into())));
    }
    Ok(match incoming.method {
        "tasks/get" => Work::Gather(Box::pin(admin::get(frontend, era, name))),
        "tasks/cancel" => Work::Gather(Box::pin(admin::cancel(frontend, era, name))),
        "tasks/result" => Work::Gather(Box::pin(admin::result(frontend, name))),
        "tasks/update" if era == Era::Modern => Work::Gather(Box::pin(admin::update(frontend, name))),
        method => Work::Ready(Some(RpcError::method_not_found(method).into())),
    })
}
