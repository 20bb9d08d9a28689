//! Finds or opens the connection for a call, for each of the four combinations of client era and server era.

use super::answers::Given;
use super::authorise::bad_params;
use super::flow::{Flow, Kind, Phase};
use super::from_catalog;
use super::not_connected::NotConnected;
use super::own_lists::notify_of_other_tools;
use super::own_params::own_params;
use super::rounds::{self, Rounds};
use super::slot::Slot;
use super::suspended::{CallIdentity, Resumable};
use crate::catalog::Reader;
use crate::catalog::names::own_name;
use crate::failure;
use crate::host::Host;
use crate::lanes::Lane;
use crate::open_error::OpenError;
use crate::session::{InUse, Session};
use crate::session_setup::set_level;
use crate::translate::legacy_on_modern::{self, ClientIdentity};
use crate::translate::listen::{Filter, LISTEN};
use crate::translate::modern_on_legacy::{self, Envelope, Repetition};
use crate::translate::{client_can, server_has};
use crate::upstream::{Upstream, Usage};
use std::sync::Arc;
use toolbus_mcp::{Era, Members, MembersError, Outcome, Raw, Rpc, RpcError, codes, empty_object, meta};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{Eras, ServerError};

/// A call that can be sent, or is answered already.
pub enum Connected {
    Link(Box<Link>),
    /// Without the server.
    Answered(Given),
}

/// A connection for one call, and how the call is translated on it.
pub struct Link {
    upstream: Option<Arc<Upstream>>,
    session: Option<Arc<Session>>,
    in_use: Option<InUse>,
    lane: Option<Lane>,
    params: Option<Raw>,
    style: Style,
}

enum Style {
    /// Client and server use the same era.
    Pass,
    Listen,
    /// A modern client listens to a legacy server.
    ListenOnLegacy,
    /// It listens to changes of lists only, which needs no connection.
    ListenToLists(Filter),
    ModernOnLegacy(Box<Envelope>),
    /// A modern client repeats its request to answer a request of the server.
    Continue(Box<Envelope>, Repetition),
    LegacyOnModern(Box<Rounds>),
}

/// Finds or opens a connection. If the request calls a tool, the connection's list of tools is known afterwards. A
/// connection that was lost without notice is replaced once.
pub async fn connect(host: &Arc<Host>, slot: &Slot) -> Result<Connected, NotConnected> {
    let mut is_second = false;
    loop {
        let connected = find_connection(host, slot).await?;
        let Connected::Link(link) = &connected else { return Ok(connected) };
        let Err(error) = link.read_tools(host, slot).await else { return Ok(connected) };
        let is_lost = matches!(
            error,
            ServerError::SessionGone { .. }
                | ServerError::Died { .. }
                | ServerError::BrokenOff { .. }
                | ServerError::Closed { .. }
        );
        if is_second || !is_lost {
            return Err(NotConnected::of_server(&error));
        }
        if let (Some(session), Some(upstream)) = (&link.session, &link.upstream) {
            forget(session, upstream).await;
        }
        is_second = true;
    }
}

async fn find_connection(host: &Arc<Host>, slot: &Slot) -> Result<Connected, NotConnected> {
    let eras = slot.server.eras(host).await.map_err(|error| NotConnected::ServerFailed(error.into()))?;
    let connected = connect_in(host, slot, &eras).await;
    // The first legacy session of a modern server may show that the server does not speak that era.
    let eras_now = slot.server.known_eras().filter(|_| eras.legacy_untried && connected.is_err());
    match eras_now.filter(|now| !now.speaks(Era::Legacy)) {
        Some(now) => connect_in(host, slot, &now).await,
        None => connected,
    }
}

async fn connect_in(host: &Arc<Host>, slot: &Slot, eras: &Arc<Eras>) -> Result<Connected, NotConnected> {
    if let Some(answer) = from_catalog::answer(host, slot, eras).await? {
        return Ok(Connected::Answered(answer));
    }
    let params = own_params(&slot.server, &slot.parsed.rpc, slot.parsed.key())?;
    let era = slot.server.era_for(slot.parsed.rpc.client.era, eras);
    slot.state().era = Some(era);
    match (slot.parsed.rpc.client.era, era) {
        (Era::Legacy, Era::Legacy) => legacy(host, slot, params).await,
        (Era::Modern, Era::Modern) => modern(host, slot, eras, params).await,
        (Era::Modern, Era::Legacy) => modern_on_legacy(host, slot, eras, params).await,
        (Era::Legacy, Era::Modern) => legacy_on_modern(host, slot, eras, params).await,
    }
}

async fn modern(host: &Arc<Host>, slot: &Slot, eras: &Eras, params: Option<Raw>) -> Result<Connected, NotConnected> {
    if is_repetition_of_legacy(slot) {
        return Err(failure::unknown_state().into());
    }
    let upstream = slot.server.modern_upstream(host, eras).await?;
    let style = if slot.parsed.rpc.method == LISTEN { Style::Listen } else { Style::Pass };
    Ok(linked(Link { upstream: Some(upstream), session: None, in_use: None, lane: None, params, style }))
}

/// The states of suspended calls are made by this host, so a modern server can't know them.
fn is_repetition_of_legacy(slot: &Slot) -> bool {
    let repetition = Repetition::of(slot.parsed.rpc.params.as_ref()).ok().flatten();
    repetition.is_some_and(|repetition| CallIdentity::is_own_state(&repetition.state))
}

async fn legacy(host: &Arc<Host>, slot: &Slot, params: Option<Raw>) -> Result<Connected, NotConnected> {
    let rpc = &slot.parsed.rpc;
    let session = slot.server.session(host, slot.session_id(), Era::Legacy, slot.role())?;
    let in_use = Some(session.begin_use());
    if rpc.method == "initialize" {
        let params = rpc.params.clone().unwrap_or_else(empty_object);
        let handshake = slot.server.initialize_shared(host, &session, &params).await?;
        return Ok(Connected::Answered(Outcome::Result(handshake).into()));
    }
    let Some(initialize) = &rpc.client.initialize else { return Err(without_session().into()) };
    let upstream = slot.server.session_upstream(host, &session, || initialize.clone()).await?;
    if let Some(outcome) = answered_here(rpc, &session, &upstream)? {
        return Ok(Connected::Answered(outcome.into()));
    }
    Ok(linked(Link {
        upstream: Some(upstream),
        session: Some(session),
        in_use,
        lane: None,
        params,
        style: Style::Pass,
    }))
}

async fn modern_on_legacy(
    host: &Arc<Host>,
    slot: &Slot,
    eras: &Eras,
    params: Option<Raw>,
) -> Result<Connected, NotConnected> {
    let rpc = &slot.parsed.rpc;
    let envelope = Box::new(Envelope::of(rpc.params.as_ref())?);
    if rpc.method == LISTEN
        && let Some(handshake) = eras.legacy.as_ref().filter(|_| !slot.server.is_shared())
        && let Some(wanted) = Filter::of_listen(rpc.params.as_ref()).ok().filter(|wanted| wanted.uris.is_empty())
    {
        let style = Style::ListenToLists(wanted.honoured_by(handshake));
        return Ok(linked(Link { upstream: None, session: None, in_use: None, lane: None, params: None, style }));
    }
    if modern_on_legacy::is_removed(&rpc.method) {
        return Err(RpcError::method_not_found(&rpc.method).into());
    }
    if let Some(repetition) = Repetition::of(rpc.params.as_ref())? {
        let style = Style::Continue(envelope, repetition);
        return Ok(linked(Link { upstream: None, session: None, in_use: None, lane: None, params: None, style }));
    }
    let (session, upstream, lane) = session_for_call(host, slot, &envelope).await?;
    let in_use = Some(session.begin_use());
    if let Some(level) = envelope.log_level
        && session.level().is_none_or(|present| level < present)
        && server_has(&upstream.handshake(), "logging")
    {
        session.set_level(level);
        set_level(&upstream, level).await;
    }
    let is_listen = rpc.method == LISTEN;
    let params = if is_listen { params } else { modern_on_legacy::params(params.as_ref()).map_err(bad_params)? };
    let style = if is_listen { Style::ListenOnLegacy } else { Style::ModernOnLegacy(envelope) };
    Ok(linked(Link { upstream: Some(upstream), session: Some(session), in_use, lane, params, style }))
}

/// The connection for a modern client's call to a legacy server. A call during which the server may ask the client has it
/// to itself where the server can't say which call it asks for.
async fn session_for_call(
    host: &Arc<Host>,
    slot: &Slot,
    envelope: &Envelope,
) -> Result<(Arc<Session>, Arc<Upstream>, Option<Lane>), NotConnected> {
    let server = &slot.server;
    let may_ask = ["elicitation/create", "sampling/createMessage", "roots/list"]
        .iter()
        .any(|method| client_can(&envelope.capabilities, method));
    let is_alone =
        may_ask && modern_on_legacy::may_request_input(&slot.parsed.rpc.method) && server.asks_without_call();
    loop {
        let freed = server.lanes.freed();
        let lane = is_alone.then(|| server.lanes.take(slot.session_id()));
        let id = lane.as_ref().map_or_else(|| slot.session_id(), Lane::session);
        let session = server.session(host, id, Era::Modern, slot.role())?;
        match server.session_upstream(host, &session, || envelope.initialize()).await {
            Ok(upstream) => return Ok((session, upstream, lane)),
            // All processes are in use: wait for a lane, as long as the call may wait.
            Err(OpenError::Host(_)) if lane.as_ref().is_some_and(|lane| !lane.is_first()) => {
                drop((session, lane));
                freed.await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn legacy_on_modern(
    host: &Arc<Host>,
    slot: &Slot,
    eras: &Arc<Eras>,
    params: Option<Raw>,
) -> Result<Connected, NotConnected> {
    let rpc = &slot.parsed.rpc;
    let session = slot.server.session(host, slot.session_id(), Era::Legacy, slot.role())?;
    let in_use = Some(session.begin_use());
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    if rpc.method == "initialize" {
        let params = rpc.params.clone().unwrap_or_else(empty_object);
        let result = legacy_on_modern::initialize_result(&discover, &params, slot.server.name());
        let result = result.map_err(|error| bad_result(slot, &error))?;
        return Ok(Connected::Answered(Outcome::Result(result).into()));
    }
    let Some(initialize) = &rpc.client.initialize else { return Err(without_session().into()) };
    let identity = ClientIdentity::of_initialize(initialize).map_err(bad_params)?;
    if let Some(outcome) = rounds::answered_here(host, slot, &session, eras, &identity).await? {
        return Ok(Connected::Answered(outcome.into()));
    }
    let level = session.level().or_else(|| legacy_on_modern::default_level(&discover));
    let upstream = slot.server.modern_upstream(host, eras).await?;
    let rounds = Rounds::new(identity, level, params);
    let params = Some(rounds.first_params().map_err(bad_params)?);
    let style = Style::LegacyOnModern(Box::new(rounds));
    Ok(linked(Link { upstream: Some(upstream), session: Some(session), in_use, lane: None, params, style }))
}

fn linked(link: Link) -> Connected {
    Connected::Link(Box::new(link))
}

impl Link {
    /// The changes of lists that the call listens to, if these are all.
    pub fn list_changes(&self) -> Option<Filter> {
        match &self.style {
            Style::ListenToLists(filter) => Some(filter.clone()),
            _ => None,
        }
    }

    /// Reads the tools that the connection lists, unless they are known. Whether the call may be sent is decided when it is
    /// authorised again.
    async fn read_tools(&self, host: &Arc<Host>, slot: &Slot) -> Result<(), ServerError> {
        let (Some(upstream), Some(visible)) = (&self.upstream, slot.parsed.named_tool()) else { return Ok(()) };
        let config = &slot.server.config;
        let Some(own) = own_name(config.prefix.as_deref(), visible) else { return Ok(()) };
        if config.dynamic_tools && !host.options.pins.apply_to(config.into()) {
            return Ok(());
        }
        // The client's own notification may be on its way, and a server need not answer before it.
        if let Some(session) = self.session.as_ref().filter(|_| upstream.usage == Usage::Own)
            && session.set_initialized(true)
        {
            upstream.connection.notify("notifications/initialized", None).await?;
        }
        let era = slot.state().era.unwrap_or(slot.parsed.rpc.client.era);
        let reader = Reader { host, server: &slot.server, upstream, era };
        let listed = reader.listed_tools(own).await?;
        if let Some(session) = self.session.as_ref().filter(|_| upstream.usage == Usage::Own) {
            notify_of_other_tools(host, &slot.server, session, upstream, &listed).await;
        }
        slot.state().listed = Some(listed);
        Ok(())
    }

    /// Sends the request. `Err(ServerFailed)` means that the server certainly did not take it.
    pub async fn send(self: Box<Self>, host: &Arc<Host>, slot: &Arc<Slot>) -> Result<Box<Flow>, NotConnected> {
        let Self { upstream, session, in_use, lane, params, style } = *self;
        let (method, server) = (&slot.parsed.rpc.method, slot.server.name());
        if let Style::Continue(envelope, repetition) = style {
            let identity = CallIdentity::of(&slot.request, &slot.parsed, &slot.server);
            let Some(mut flow) = host.pending_calls.resume(&identity, &repetition.state).await else {
                return Err(failure::unknown_state().into());
            };
            flow.attach(Arc::clone(slot), *envelope, repetition);
            return Ok(flow);
        }
        let Some(upstream) = upstream else { return Err(failure::panicked(server, method).into()) };
        let wants_log = meta::get(params.as_ref(), meta::LOG_LEVEL).is_some();
        let log = (wants_log && session.is_none()).then(|| upstream.add_log_receiver(slot));
        let phase = match &style {
            Style::ListenOnLegacy => Phase::Listening,
            _ => match upstream.connection.start_for(slot.caller(), method, params).await {
                Ok(call) => Phase::Server(call),
                Err(error) => {
                    if let Some(session) = &session {
                        forget(session, &upstream).await;
                    }
                    return Err(not_taken(slot, &error));
                }
            },
        };
        let kind = match style {
            Style::Pass | Style::Continue(..) => Kind::Pass,
            Style::Listen => Kind::Listen,
            Style::ListenOnLegacy | Style::ListenToLists(_) => Kind::ListenOnLegacy,
            Style::ModernOnLegacy(envelope) => {
                let wants_log = envelope.log_level.is_some();
                let strays = session.as_ref().map(|session| session.take_strays(wants_log));
                Kind::Resumable(Box::new(Resumable::new(*envelope, strays, lane)))
            }
            Style::LegacyOnModern(rounds) => Kind::Rounds(rounds),
        };
        Ok(Box::new(Flow::new(Arc::clone(host), Arc::clone(slot), upstream, (session, in_use), (kind, phase), log)))
    }
}

/// The connection did not take the request.
pub fn not_taken(slot: &Slot, error: &ServerError) -> NotConnected {
    let answer = match error {
        // The connection was closed before anything was sent.
        ServerError::Closed { .. } => {
            let message = format!("server {:?} closes its connections immediately", slot.server.name());
            failure::bus(ErrorCode::ServerDown, message)
        }
        error => error.to_rpc_error(),
    };
    NotConnected::ServerFailed(answer.into())
}

/// Closes the connection, so that the next attempt opens a new one.
pub async fn forget(session: &Session, upstream: &Arc<Upstream>) {
    let mut current = session.upstream.lock().await;
    let is_current = current.as_ref().is_some_and(|present| Arc::ptr_eq(present, upstream));
    // Other clients use a shared connection, which is replaced when it is closed.
    if is_current && (upstream.usage == Usage::Own || !upstream.is_open()) {
        upstream.close().await;
        // Kept, so that the next connection restores the session's state.
        *current = Some(Arc::clone(upstream));
    }
}

/// On a shared connection, only the first subscription and the last unsubscription of a resource reach the server.
fn answered_here(rpc: &Rpc, session: &Session, upstream: &Upstream) -> Result<Option<Outcome>, RpcError> {
    if upstream.usage != Usage::Shared {
        return Ok(None);
    }
    let uri = || Ok::<_, RpcError>(Members::of(rpc.params.as_ref()).map_err(bad_params)?.text("uri"));
    let settled = match rpc.method.as_str() {
        "ping" => true,
        "resources/subscribe" => match uri()? {
            Some(uri) => !session.subscribe(&uri) || !upstream.add_subscription(&uri),
            None => false,
        },
        "resources/unsubscribe" => match uri()? {
            Some(uri) => !session.unsubscribe(&uri) || !upstream.remove_subscription(&uri),
            None => false,
        },
        _ => false,
    };
    Ok(settled.then(|| Outcome::Result(empty_object())))
}

pub fn bad_result(slot: &Slot, error: &MembersError) -> RpcError {
    let message = format!("server {:?} answered {} with {error}", slot.server.name(), slot.parsed.rpc.method);
    failure::bus(ErrorCode::BadServerMessage, message)
}

pub fn without_session() -> RpcError {
    RpcError::new(codes::INVALID_REQUEST, "`client.initialize` is missing, which is required of legacy clients")
}
