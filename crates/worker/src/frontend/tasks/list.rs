//! `tasks/list` of the legacy era: the tasks of the bus at every host that is there, those that wait for a host that is
//! away, and beside them those of servers that have their own. Each host shows an agent its own tasks only.

use super::{admin, wire};
use crate::error;
use crate::frontend::Frontend;
use crate::frontend::call::Work;
use crate::frontend::merge::{self, Listing, Place};
use crate::view::View;
use futures_util::future::join_all;
use std::sync::Arc;
use toolbus_mcp::{AdminRequest, Era, Members, Outcome, Raw, TaskList, TaskName, raw};

/// Where a page of a host's own list goes on. Servers have names, so nothing else looks like it.
const NO_SERVER: &str = "";

pub fn list(frontend: &Arc<Frontend>, view: &Arc<View>, params: Option<Raw>) -> Work {
    let (frontend, view) = (Arc::clone(frontend), Arc::clone(view));
    Work::Gather(Box::pin(async move {
        let places = match merge::places(params.as_ref()) {
            Ok(places) => places,
            Err(error) => return error.into(),
        };
        let (ours, theirs) = split(&frontend, &view, places.as_deref());
        let first = places.is_none();
        let of_hosts = join_all(ours.into_iter().map(|(host, after)| page(&frontend, host, after)));
        let of_servers = merge::pages(&frontend, theirs, Era::Legacy, Listing::Tasks, params.as_ref());
        let (of_hosts, of_servers) = tokio::join!(of_hosts, of_servers);
        let mut tasks = if first { waiting(&frontend).await } else { Vec::new() };
        let (mut next, mut failed) = (Vec::new(), None);
        let nobody_answers = of_servers.is_empty() && of_hosts.iter().all(|asked| asked.page.is_err());
        for Asked { host, after, page } in of_hosts {
            let page = match page {
                Ok(page) => page,
                // Its tasks are not lost to the list: the next page asks for them again.
                Err(outcome) => {
                    next.push((host, NO_SERVER.to_owned(), raw(&after)));
                    failed = Some(outcome);
                    continue;
                }
            };
            let named = page.tasks.iter().map(|view| (TaskName { host: host.clone(), id: view.id.clone() }, view));
            tasks.extend(named.map(|(name, view)| wire::legacy(&name, view, false)));
            next.extend(page.next.map(|after| (host, NO_SERVER.to_owned(), raw(&after))));
        }
        if let Some(failed) = failed.filter(|_| nobody_answers && tasks.is_empty()) {
            return failed;
        }
        let (of_servers, more) = merge::united(&frontend, &view, Listing::Tasks, of_servers);
        tasks.extend(of_servers);
        next.extend(more);
        Outcome::Result(written(&tasks, &next))
    }))
}

/// A host, and after which of its tasks it goes on.
type HostPage = (String, Option<String>);

/// Who is asked for this page: hosts for tasks of the bus, servers for their own.
fn split(frontend: &Frontend, view: &View, places: Option<&[Place]>) -> (Vec<HostPage>, Vec<merge::ServerPage>) {
    let Some(places) = places else {
        let hosts = frontend.worker.hosts_here().into_iter().map(|host| (host, None)).collect();
        let own = view
            .upstreams()
            .iter()
            .filter(|upstream| upstream.greeting(Era::Legacy).is_some() && upstream.has_own_tasks(Era::Legacy));
        return (hosts, own.map(|upstream| (Arc::clone(upstream), None)).collect());
    };
    let ours = places.iter().filter(|(_, server, _)| server == NO_SERVER);
    let ours = ours.filter(|(host, ..)| frontend.worker.knows_host(host));
    let ours = ours.map(|(host, _, cursor)| (host.clone(), serde_json::from_str(cursor.get()).ok()));
    (ours.collect(), merge::servers_of(view, places))
}

struct Asked {
    host: String,
    after: Option<String>,
    page: Result<TaskList, Outcome>,
}

async fn page(frontend: &Frontend, host: String, after: Option<String>) -> Asked {
    let patience = frontend.worker.options.list_patience;
    let answer = admin::ask(frontend, &host, AdminRequest::TaskList { after: after.clone() }, patience).await;
    let page = answer.and_then(|answer| {
        serde_json::from_str(answer.get()).map_err(|error| error::bad_reply(&error.to_string()).into())
    });
    Asked { host, after, page }
}

async fn waiting(frontend: &Frontend) -> Vec<Raw> {
    frontend.worker.left_tasks().await.iter().map(|(name, view)| wire::legacy(name, view, true)).collect()
}

fn written(tasks: &[Raw], next: &[Place]) -> Raw {
    let mut result = Members::default();
    result.set("tasks", raw(tasks));
    if let Some(cursor) = merge::cursor(next) {
        result.set("nextCursor", raw(&cursor));
    }
    result.to_raw()
}
