//! A live connection to one server in one era, over whichever transport the server has.

use crate::call::ServerCall;
use crate::calls::{Calls, NewCall};
use crate::config::{ServerConfig, TransportConfig};
use crate::error::ServerError;
use crate::http::HttpLink;
use crate::inbound::{Counters, Inbound, Oddities};
use crate::options::ConnectionOptions;
use crate::secrets;
use crate::stdio::StdioLink;
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::mpsc;
use toolbus_mcp::{Era, Id, Message, Notification, Outcome, Raw, Request, Response};

/// What a server says outside of any call.
#[derive(Debug, Clone)]
pub enum ServerEvent {
    Notification {
        method: String,
        params: Option<Raw>,
    },
    Request {
        id: Id,
        method: String,
        params: Option<Raw>,
    },
    /// The last event: every open call has got the same error.
    Closed(ServerError),
}

/// A cheap handle. When the last one is dropped, the connection is closed and the process reaped; an open
/// [`ServerCall`] counts as a handle.
#[derive(Clone)]
pub struct ServerConnection(Arc<Handle>);

pub(crate) struct Handle {
    inbound: Arc<Inbound>,
    link: Link,
}

enum Link {
    Stdio(StdioLink),
    Http(HttpLink),
}

impl ServerConnection {
    /// Spawns the process, or prepares for HTTP. No handshake is done here.
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
        };
        let link = link.map_err(|error| error.redacted(&redactor))?;
        Ok(Self(Arc::new(Handle { inbound, link })))
    }

    /// Sends a request under an id of our own. A `progressToken` in the params' `_meta` may be replaced by one of our
    /// own too; in what comes back it is the caller's again.
    pub async fn start(&self, method: &str, params: Option<Raw>) -> Result<ServerCall, ServerError> {
        let handle = &self.0;
        let NewCall { number, params, queue } = handle.inbound.calls.open(&handle.inbound.server, method, params)?;
        let call = ServerCall::new(number, queue, handle.clone());
        let request = Request { id: Id::number(number), method: method.to_owned(), params };
        match &handle.link {
            Link::Stdio(link) => link.send(request.into()).await?,
            Link::Http(link) => link.start(number, request)?,
        }
        Ok(call)
    }

    pub async fn notify(&self, method: &str, params: Option<Raw>) -> Result<(), ServerError> {
        self.0.send(Notification { method: method.to_owned(), params }.into()).await
    }

    /// Answers a request that the server made.
    pub async fn answer(&self, id: &Id, outcome: Outcome) -> Result<(), ServerError> {
        self.0.answer(id, outcome).await
    }

    /// Tells an HTTP connection which arguments the tools in a result of `tools/list` want as headers. It learns from
    /// the lists that pass through it by itself; this is for one who has the list from elsewhere.
    pub fn learn_tools(&self, list: &RawValue) {
        if let Link::Http(link) = &self.0.link {
            link.learn_tools(list);
        }
    }

    /// The last lines that the server wrote to stderr.
    pub fn stderr_tail(&self) -> Vec<String> {
        match &self.0.link {
            Link::Stdio(link) => link.stderr_tail(),
            Link::Http(_) => Vec::new(),
        }
    }

    /// Why the connection is over, if it is.
    pub fn closed(&self) -> Option<ServerError> {
        self.0.inbound.calls.closed()
    }

    /// What the server did wrong so far and was forgiven.
    pub fn oddities(&self) -> Oddities {
        self.0.inbound.oddities()
    }

    /// Lets the server leave by itself, and ends it if it doesn't. Returns when it is gone.
    pub async fn close(&self) {
        match &self.0.link {
            Link::Stdio(link) => {
                link.stop();
                link.gone().await;
            }
            Link::Http(link) => link.close().await,
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
        }
    }

    pub(crate) async fn answer(&self, id: &Id, outcome: Outcome) -> Result<(), ServerError> {
        self.send(Response { id: Some(id.clone()), outcome }.into()).await
    }

    pub(crate) fn cancel(&self, number: u64, reason: Option<&str>) {
        // A handshake can't be taken back.
        let Some(method) = self.inbound.calls.method_of(number).filter(|method| &**method != "initialize") else {
            return;
        };
        match &self.link {
            Link::Stdio(link) => link.cancel(number, reason),
            Link::Http(link) => link.cancel(number, &method, reason),
        }
    }

    /// The caller does not wait any more.
    pub(crate) fn give_up(&self, number: u64) {
        self.cancel(number, None);
        self.inbound.calls.give_up(number);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match &self.link {
            Link::Stdio(link) => link.stop(),
            Link::Http(link) => link.stop(),
        }
    }
}
