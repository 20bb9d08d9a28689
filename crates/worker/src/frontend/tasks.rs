//! Tasks that the bus owns, for servers that have none of their own. The host keeps them; the front makes them of tool
//! calls, and speaks of them as the client's era does.
//!
//! A task's id names its host, so that any worker of the same agent finds it, after any restart.

mod admin;
mod begin;
mod list;
pub mod offer;
mod wire;

pub use begin::{Wish, begin, wish};

use super::call::Work;
use super::route::Asked;
use crate::error;
use crate::view::View;
use std::sync::Arc;
use toolbus_mcp::{Era, NameKey, RpcError, TaskName, routed_name};

/// What is asked about tasks of the bus. Gives the request back if it is about something else.
pub fn answer<'a>(asked: Asked<'a>, view: &Arc<View>) -> Result<Work, Asked<'a>> {
    if asked.method == "tasks/list" && asked.era == Era::Legacy {
        let at_server = view.sole().is_some_and(|upstream| upstream.has_own_tasks(Era::Legacy));
        return if at_server { Err(asked) } else { Ok(list::list(asked.frontend, view, asked.params)) };
    }
    let Some(NameKey::Task(text)) = routed_name(asked.method, asked.params.as_deref()) else { return Err(asked) };
    let Some(name) = TaskName::parse(&text) else { return Err(asked) };
    // Behind a server there may be another bus, which names its tasks likewise.
    let worker = &asked.frontend.worker;
    let at_server = view.sole().is_some_and(|upstream| upstream.declares_tasks(asked.era))
        || worker.owner(view, &NameKey::Task(text.clone())).is_some();
    if at_server {
        return Err(asked);
    }
    if asked.era == Era::Modern && !wire::declares_tasks(asked.params.as_deref()) {
        return Ok(Work::Ready(Some(error::tasks_not_declared().into())));
    }
    let (frontend, era) = (Arc::clone(asked.frontend), asked.era);
    if !frontend.worker.knows_host(&name.host) {
        return Ok(Work::Ready(Some(error::unknown_task(&text).into())));
    }
    Ok(match asked.method {
        "tasks/get" => Work::Gather(Box::pin(admin::get(frontend, era, name))),
        "tasks/cancel" => Work::Gather(Box::pin(admin::cancel(frontend, era, name))),
        "tasks/result" => Work::Gather(Box::pin(admin::result(frontend, name))),
        "tasks/update" if era == Era::Modern => Work::Gather(Box::pin(admin::update(frontend, name))),
        method => Work::Ready(Some(RpcError::method_not_found(method).into())),
    })
}
