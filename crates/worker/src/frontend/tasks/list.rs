//! Legacy `tasks/list`: the tasks of the bus at every connected host, the tasks queued for absent hosts, and the tasks
//! of servers that have their own. Each host lists only the agent's own tasks.

use super::{admin, wire};
use crate::error;
use crate::frontend::Frontend;
use crate::frontend::call::Work;
use crate::frontend::merge::{self, Listing, ServerCursor};
use crate::view::View;
use futures_util::future::join_all;
use std::sync::Arc;
use toolbus_mcp::{AdminRequest, Era, Members, Outcome, Raw, TaskList, TaskName, raw};

/// Server name of the cursors of a host's own list. Unambiguous, because the names of servers are not empty.
const NO_SERVER: &str = "";

pub fn list(frontend: &Arc<Frontend>, view: &Arc<View>, params: Option<Raw>) -> Work {
    let (frontend, view) = (Arc::clone(frontend), Arc::clone(view));
    Work::Gather(Box::pin(async move {
        let cursors = match merge::decode_cursor(params.as_ref()) {
            Ok(cursors) => cursors,
            Err(error) => return error.into(),
        };
        let (host_pages, server_pages) = split(&frontend, &view, cursors.as_deref());
        let first = cursors.is_none();
        let of_hosts = join_all(host_pages.into_iter().map(|(host, after)| fetch_page(&frontend, host, after)));
        let of_servers = merge::fetch_pages(&frontend, server_pages, Era::Legacy, Listing::Tasks, params.as_ref());
        let (of_hosts, of_servers) = tokio::join!(of_hosts, of_servers);
        let mut tasks = if first { queued_tasks(&frontend).await } else { Vec::new() };
        let (mut next, mut failed) = (Vec::new(), None);
        let no_answers = of_servers.is_empty() && of_hosts.iter().all(|fetched| fetched.page.is_err());
        for FetchedPage { host, after, page } in of_hosts {
            let page = match page {
                Ok(page) => page,
                // The next page retries this host, so that its tasks are not missing from the list.
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
        if let Some(failed) = failed.filter(|_| no_answers && tasks.is_empty()) {
            return failed;
        }
        let (of_servers, more) = merge::merge_pages(&frontend, &view, Listing::Tasks, of_servers);
        tasks.extend(of_servers);
        next.extend(more);
        Outcome::Result(to_result(&tasks, &next))
    }))
}

/// A page to fetch: the host and the id of the last task of the previous page.
type HostPage = (String, Option<String>);

/// The pages to fetch: of hosts for tasks of the bus, of servers for their own tasks.
fn split(
    frontend: &Frontend,
    view: &View,
    cursors: Option<&[ServerCursor]>,
) -> (Vec<HostPage>, Vec<merge::ServerPage>) {
    let Some(cursors) = cursors else {
        let hosts = frontend.worker.connected_hosts().into_iter().map(|host| (host, None)).collect();
        let own = view
            .upstreams()
            .iter()
            .filter(|upstream| upstream.greeting(Era::Legacy).is_some() && upstream.has_own_tasks(Era::Legacy));
        return (hosts, own.map(|upstream| (Arc::clone(upstream), None)).collect());
    };
    let host_pages = cursors.iter().filter(|(_, server, _)| server == NO_SERVER);
    let host_pages = host_pages.filter(|(host, ..)| frontend.worker.knows_host(host));
    let host_pages = host_pages.map(|(host, _, cursor)| (host.clone(), serde_json::from_str(cursor.get()).ok()));
    (host_pages.collect(), merge::resumed_pages(view, cursors))
}

struct FetchedPage {
    host: String,
    after: Option<String>,
    page: Result<TaskList, Outcome>,
}

async fn fetch_page(frontend: &Frontend, host: String, after: Option<String>) -> FetchedPage {
    let timeout = frontend.worker.options.gather_patience;
    let answer = admin::query(frontend, &host, AdminRequest::TaskList { after: after.clone() }, timeout).await;
    let page = answer.and_then(|answer| {
        serde_json::from_str(answer.get()).map_err(|error| error::bad_reply(&error.to_string()).into())
    });
    FetchedPage { host, after, page }
}

async fn queued_tasks(frontend: &Frontend) -> Vec<Raw> {
    frontend.worker.queued_tasks().await.iter().map(|(name, view)| wire::legacy(name, view, true)).collect()
}

fn to_result(tasks: &[Raw], next: &[ServerCursor]) -> Raw {
    let mut result = Members::default();
    result.set("tasks", raw(tasks));
    if let Some(cursor) = merge::encode_cursor(next) {
        result.set("nextCursor", raw(&cursor));
    }
    result.into_raw()
}
