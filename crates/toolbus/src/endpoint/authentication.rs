//! Authenticates HTTP clients, and ends their streams when the credential ends.

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
use toolbus_broker::{
    AppBody, BrokerServer, Credential, Identity, OWN_NAME, PeerCertificate, PeerConnection, Rights, Share, Standing,
    is_local_request,
};
use toolbus_protocol::AgentRef;
use toolbus_worker::{AuthFailure, BoxFuture, Principal, Principals};

/// The mailboxes of HTTP clients: with the shared token, with their own credential, and without a token.
const WITH_SHARED_TOKEN: &str = "mcp";
const SUFFIX: &str = "#mcp";
pub const WITHOUT_TOKEN: &str = "loopback";

pub struct HttpAuthenticator {
    pub server: Arc<BrokerServer>,
    pub shared_token: bool,
    /// Role of clients with the shared token.
    pub role: Option<String>,
    pub loopback_role: Option<String>,
}

/// The result of the authentication, stored in the extensions of the request.
#[derive(Clone)]
pub struct AuthOutcome(pub Result<Identity, AuthFailure>);

impl HttpAuthenticator {
    pub fn authenticate(&self, request: &Request<Incoming>) -> Result<Identity, AuthFailure> {
        let certificate = request.extensions().get::<PeerCertificate>().map(|certificate| &*certificate.0);
        let mut headers = request.headers().get_all(AUTHORIZATION).iter();
        let token = match (headers.next(), headers.next()) {
            (Some(header), None) => header.to_str().ok().and_then(bearer).ok_or(AuthFailure::Invalid)?,
            (Some(_), Some(_)) => return Err(AuthFailure::Invalid),
            (None, _) if certificate.is_some() => "",
            (None, _) if is_local_request(request) => return self.without_token(),
            // A reverse proxy on this machine forwards requests of other machines, which would get the role.
            (None, _) => return Err(AuthFailure::Missing),
        };
        // A certificate is that of the connection.
        let connection = request.extensions().get::<PeerConnection>();
        if let Some(identity) = connection.and_then(|connection| connection.proven(token.as_bytes())) {
            return Ok(identity);
        }
        let claimed = match self.shared_token {
            true => crate::reach::in_role(AgentRef::new(WITH_SHARED_TOKEN), self.role.clone()),
            false => AgentRef::new(format!("{OWN_NAME}{SUFFIX}")),
        };
        let refused =
            |refusal: toolbus_broker::AuthRefusal| AuthFailure::Refused { code: refusal.code, reason: refusal.reason };
        let identity =
            self.server.authenticate(&Credential { token, certificate, claimed: &claimed }).map_err(refused)?;
        connection.iter().for_each(|connection| connection.remember(token.as_bytes(), &identity));
        Ok(identity)
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

/// Reads the principal from the extensions of the request.
pub struct RequestPrincipals {
    pub server: Arc<BrokerServer>,
}

impl Principals for RequestPrincipals {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>> {
        let outcome = head.extensions.get::<AuthOutcome>().map(|AuthOutcome(outcome)| outcome.clone());
        let principal = outcome.unwrap_or(Err(AuthFailure::Missing)).map(|identity| principal(&identity));
        Box::pin(std::future::ready(principal))
    }

    fn share(&self, principal: &Principal) -> Share {
        self.server.share(principal.role.as_deref())
    }
}

pub fn principal(identity: &Identity) -> Principal {
    let role = identity.agent.role.as_ref().map(ToString::to_string);
    Principal { name: identity.principal().to_owned(), role, incarnation: identity.incarnation }
}

/// A response body that ends when the credential of its request ends.
pub struct RevocableBody {
    body: AppBody,
    ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl RevocableBody {
    pub fn new(body: AppBody, standing: Standing) -> Self {
        // A body of known size is sent at once; only a stream can outlive the credential.
        let is_stream = body.size_hint().exact().is_none();
        let ended = is_stream.then(|| {
            Box::pin(async move {
                standing.wait().await;
            }) as Pin<Box<_>>
        });
        Self { body, ended }
    }
}

impl Body for RevocableBody {
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
