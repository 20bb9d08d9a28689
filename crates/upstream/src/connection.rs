//! A live connection to one server in one era, over stdio, HTTP or within this process.

use crate::call::ServerCall;
use crate::calls::{Calls, NewCall};
use crate::config::{ServerConfig, TransportConfig};
use crate::error::ServerError;
use crate::http::{EventLink, HttpLink};
use crate::in_process::{Caller, InProcessLink};
use crate::inbound::{Counters, Inbound, Oddities};
use crate::options::ConnectionOptions;
use crate::secrets;
use crate::stdio::StdioLink;
use std::sync::Arc;
use tokio::sync::mpsc;
use toolbus_mcp::{Era, Id, Message, Notification, Outcome, Raw, Request, Response};

/// A message of the server outside of any call.
#[derive(Debug, Clone)]
pub enum ServerEvent {
    /// A notification of the server.
    Notification {
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// A request of the server, answered with [`ServerConnection::answer`].
    Request {
        /// Id to use in the answer.
        id: Id,
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// The last event. Every open call ended with the same error.
    Closed(ServerError),
}

/// A cheap handle. Dropping the last one closes the connection and reaps the process; an open [`ServerCall`] counts as
/// a handle.
#[derive(Clone)]
pub struct ServerConnection(Arc<Handle>);

pub(crate) struct Handle {
    inbound: Arc<Inbound>,
    link: Link,
}

enum Link {
    Stdio(StdioLink),
    Http(HttpLink),
    Events(EventLink),
    InProcess(InProcessLink),
}

impl ServerConnection {
    /// Spawns the process, or prepares the HTTP client. Doesn't perform the MCP handshake.
    pub async fn open(
        config: &ServerConfig,
        era: Era,
        options: &ConnectionOptions,
        events: mpsc::Sender<ServerEvent>,
    ) -> Result<Self, ServerError> {
        let resolved = secrets::resolve(config, false).await?;
        let redactor = config.secrets.redactor().clone();
        let calls = Calls::new(era, options.map_tokens, redactor.clone());
        let inbound = Arc::new(Inbound {
            server: config.name.clone(),
            calls,
            redactor: redactor.clone(),
            redact_results: config.secrets.redact_results,
            counters: Counters::default(),
            events,
        });
        let link = match &config.transport {
            TransportConfig::Stdio { .. } => {
                StdioLink::open(config, &resolved, options, inbound.clone()).map(Link::Stdio)
            }
            TransportConfig::Http { .. } => {
                HttpLink::open(config, &resolved, era, options, inbound.clone()).map(Link::Http)
            }
            TransportConfig::Sse { .. } => {
                EventLink::open(config, &resolved, options, inbound.clone()).map(Link::Events)
            }
            TransportConfig::InProcess(server) => {
                Ok(Link::InProcess(InProcessLink::open(Arc::clone(server), inbound.clone())))
            }
        };
        let link = link.map_err(|error| error.redacted(&redactor))?;
        Ok(Self(Arc::new(Handle { inbound, link })))
    }

    /// Sets the era and the use of a connection that was opened to find out its era: `shared` maps progress tokens, as
    /// [`ConnectionOptions::map_tokens`] does. Call it before the first call with a progress token.
    pub(crate) fn set_use(&self, era: Era, shared: bool) {
        self.0.inbound.calls.set_use(era, shared);
    }

    /// Sends a request under a new id. The `progressToken` in its `_meta` may be replaced as well; events of the call
    /// carry the caller's original token.
    pub async fn start(&self, method: &str, params: Option<Raw>) -> Result<ServerCall, ServerError> {
        self.start_for(Caller::default(), method, params).await
    }

    /// The same for a caller on the bus, of which only a server in this process gets to know.
    pub async fn start_for(
        &self,
        caller: Caller<'_>,
        method: &str,
        params: Option<Raw>,
    ) -> Result<ServerCall, ServerError> {
        let handle = &self.0;
        let NewCall { number, params, queue } = handle.inbound.calls.open(&handle.inbound.server, method, params)?;
        let call = ServerCall::new(number, queue, handle.clone());
        let request = Request { id: Id::number(number), method: method.to_owned(), params };
        match &handle.link {
            Link::Stdio(link) => link.send(request.into()).await?,
            Link::Http(link) => link.start(number, request)?,
            Link::Events(link) => link.start(number, request),
            Link::InProcess(link) => link.start(number, request, caller),
        }
        Ok(call)
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: Option<Raw>) -> Result<(), ServerError> {
        self.0.send(Notification { method: method.to_owned(), params }.into()).await
    }

    /// Answers a request of the server.
    pub async fn answer(&self, id: &Id, outcome: Outcome) -> Result<(), ServerError> {
        self.0.answer(id, outcome).await
    }

    /// Teaches an HTTP connection which tool arguments are repeated as headers, from a result of `tools/list`. Lists
    /// that pass through the connection are learned automatically; this is for lists from another source.
    pub fn learn_tools(&self, list: &Raw) {
        if let Link::Http(link) = &self.0.link {
            link.learn_tools(list);
        }
    }

    /// The number of transport connections that were opened so far. Only over HTTP there is more than one.
    pub fn connections_opened(&self) -> u64 {
        match &self.0.link {
            Link::Http(link) => link.connections_opened(),
            Link::Stdio(_) | Link::Events(_) | Link::InProcess(_) => 0,
        }
    }

    /// Whether the next request opens a transport connection, which another process of the server may serve.
    pub fn would_connect(&self) -> bool {
        match &self.0.link {
            Link::Http(link) => link.would_connect(),
            Link::Stdio(_) | Link::Events(_) | Link::InProcess(_) => false,
        }
    }

    /// The last lines of the server's stderr.
    pub fn stderr_tail(&self) -> Vec<String> {
        match &self.0.link {
            Link::Stdio(link) => link.stderr_tail(),
            Link::Http(_) | Link::Events(_) | Link::InProcess(_) => Vec::new(),
        }
    }

    /// Why the connection is closed, or `None` if it is open.
    pub fn closed(&self) -> Option<ServerError> {
        self.0.inbound.calls.closed()
    }

    /// Counters of protocol violations by the server.
    pub fn oddities(&self) -> Oddities {
        self.0.inbound.oddities()
    }

    /// Closes the connection, giving the server time to exit on its own before it is terminated. Returns when it has
    /// exited.
    pub async fn close(&self) {
        match &self.0.link {
            Link::Stdio(link) => {
                link.stop();
                link.gone().await;
            }
            Link::Http(link) => link.close().await,
            Link::Events(link) => link.stop(),
            Link::InProcess(link) => link.stop(),
        }
    }
}

impl Handle {
    async fn send(&self, message: Message) -> Result<(), ServerError> {
        if let Some(error) = self.inbound.calls.closed() {
            return Err(error);
        }
        match &self.link {
            Link::Stdio(link) => link.send(message).await,
            Link::Http(link) => link.send(message).await.map_err(|error| error.redacted(&self.inbound.redactor)),
            Link::Events(link) => link.send(message).await.map_err(|error| error.redacted(&self.inbound.redactor)),
            // It sends no requests, and no notification of a client concerns it.
            Link::InProcess(_) => Ok(()),
        }
    }

    pub(crate) async fn answer(&self, id: &Id, outcome: Outcome) -> Result<(), ServerError> {
        self.send(Response { id: Some(id.clone()), outcome }.into()).await
    }

    pub(crate) fn cancel(&self, number: u64, reason: Option<&str>) {
        // MCP doesn't allow `initialize` to be cancelled.
        let Some(method) = self.inbound.calls.method_of(number).filter(|method| &**method != "initialize") else {
            return;
        };
        match &self.link {
            Link::Stdio(link) => link.cancel(number, reason),
            Link::Http(link) => link.cancel(number, &method, reason),
            Link::Events(link) => link.cancel(number, reason),
            Link::InProcess(link) => link.cancel(number),
        }
    }

    /// The caller is gone: cancels the call and forgets it.
    pub(crate) fn abandon(&self, number: u64) {
        self.cancel(number, None);
        self.inbound.calls.abandon(number);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match &self.link {
            Link::Stdio(link) => link.stop(),
            Link::Http(link) => link.stop(),
            Link::Events(link) => link.stop(),
            Link::InProcess(link) => link.stop(),
        }
    }
}
