//! Who an HTTP client is, and for how long.

use hyper::Request;
use hyper::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use toolbus_broker::{AppBody, BrokerServer, Credential, Identity, OWN_NAME, PeerCertificate, Rights, Standing};
use toolbus_protocol::AgentRef;
use toolbus_worker::{AuthFailure, BoxFuture, Principal, Principals};

/// The mailboxes of HTTP clients: with the shared token, with a credential of their own, and without any.
const WITH_SHARED_TOKEN: &str = "mcp";
const SUFFIX: &str = "#mcp";
pub const WITHOUT_TOKEN: &str = "loopback";

pub struct Gate {
    pub server: Arc<BrokerServer>,
    pub shared_token: bool,
    /// Of those with the shared token.
    pub role: Option<String>,
    pub loopback_role: Option<String>,
}

/// What the gate found; it travels with the request.
#[derive(Clone)]
pub struct Admission(pub Result<Identity, AuthFailure>);

impl Gate {
    pub fn look_at(&self, request: &Request<Incoming>) -> Result<Identity, AuthFailure> {
        let certificate = request.extensions().get::<PeerCertificate>().map(|certificate| &*certificate.0);
        let mut headers = request.headers().get_all(AUTHORIZATION).iter();
        let token = match (headers.next(), headers.next()) {
            (Some(header), None) => header.to_str().ok().and_then(bearer).ok_or(AuthFailure::Invalid)?,
            (Some(_), Some(_)) => return Err(AuthFailure::Invalid),
            (None, _) if certificate.is_some() => "",
            (None, _) => return self.without_token(),
        };
        let claimed = match self.shared_token {
            true => crate::reach::in_role(AgentRef::new(WITH_SHARED_TOKEN), self.role.clone()),
            false => AgentRef::new(format!("{OWN_NAME}{SUFFIX}")),
        };
        let refused =
            |refusal: toolbus_broker::AuthRefusal| AuthFailure::Refused { code: refusal.code, reason: refusal.reason };
        self.server.authenticate(&Credential { token, certificate, claimed: &claimed }).map_err(refused)
    }

    fn without_token(&self) -> Result<Identity, AuthFailure> {
        let role = self.loopback_role.clone().ok_or(AuthFailure::Missing)?;
        let rights = if self.shared_token { Rights::UNRESTRICTED } else { Rights::WORKER };
        Ok(Identity::local(AgentRef::new(WITHOUT_TOKEN).with_role(role), rights))
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Takes the gate's word.
pub struct FromAdmission;

impl Principals for FromAdmission {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>> {
        let admission = head.extensions.get::<Admission>().map(|Admission(admission)| admission.clone());
        let principal = admission.unwrap_or(Err(AuthFailure::Missing)).map(|identity| principal(&identity));
        Box::pin(std::future::ready(principal))
    }
}

pub fn principal(identity: &Identity) -> Principal {
    let role = identity.agent.role.as_ref().map(ToString::to_string);
    Principal { name: identity.principal().to_owned(), role }
}

/// An answer that breaks off when the credential it was asked with is no longer good.
pub struct WhileGood {
    body: AppBody,
    ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl WhileGood {
    pub fn new(body: AppBody, standing: Standing) -> Self {
        // A page is there at once; only a stream can outlast its reader's rights.
        let is_stream = body.size_hint().exact().is_none();
        let ended = is_stream.then(|| {
            Box::pin(async move {
                standing.wait().await;
            }) as Pin<Box<_>>
        });
        Self { body, ended }
    }
}

impl Body for WhileGood {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(ended) = &mut self.ended
            && ended.as_mut().poll(cx).is_ready()
        {
            self.ended = None;
            self.body = AppBody::default();
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
