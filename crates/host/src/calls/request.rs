//! What the machine gets to know about a request when it arrives.

use super::parsed::ParsedCall;
use super::slot::{NewCall, Slot, key_of};
use crate::catalog::names::own_name;
use crate::host::Host;
use crate::outbox::Form;
use crate::server::Server;
use crate::translate::listen::LISTEN;
use crate::translate::modern_on_legacy::Repetition;
use std::sync::Arc;
use std::time::Duration;
use toolbus_call::{JoinMode, Millis, Origin, ReplaySetting, Request, SessionHold, SessionKey, TaskRequest};
use toolbus_mcp::{Era, NameKey, has_effect, is_plain_request};
use toolbus_protocol::InboxMessage;
use toolbus_upstream::Join;

impl Host {
    /// The machine's view of a new request from the mailbox.
    pub fn request_of(&self, new: &NewCall) -> Request {
        let client = self.outbox.client();
        let id = &new.request.id;
        let origin = Origin::Mailbox { delivery: client.attempt_of(id).unwrap_or(1), unsure: client.is_unsure(id) };
        let deadline = client.deadline_of(id).map(|deadline| self.calls.millis(deadline));
        Request { origin, deadline, ..self.described(new) }
    }

    /// The same for a request that is not in the mailbox: a task of the journal, or of an operator.
    pub fn request_from(&self, new: &NewCall, origin: Origin, deadline: Option<Millis>) -> Request {
        Request { origin, deadline, ..self.described(new) }
    }

    fn described(&self, new: &NewCall) -> Request {
        let NewCall { request, parsed, server, form, .. } = new;
        let (rpc, calls) = (&parsed.rpc, &server.config.calls);
        let own = parsed.named_tool().and_then(|tool| own_name(server.config.prefix.as_deref(), tool));
        let is_listen = rpc.method == LISTEN;
        let is_initialize = rpc.method == "initialize";
        let is_for_catalog = new.is_for_catalog();
        let session = (rpc.client.era == Era::Legacy && !is_for_catalog).then(|| {
            let key = SessionKey {
                server: server.index,
                mailbox: (&*request.from.session_id).into(),
                key: rpc.session.as_str().into(),
            };
            (key, if is_initialize { SessionHold::UntilAnswered } else { SessionHold::UntilSent })
        });
        let join = match (form, own.map_or(calls.join, |own| calls.join_of(own))) {
            // Replies in the original's format can't be shared.
            (Form::Original, _) | (_, Join::Never) => JoinMode::Never,
            (_, Join::Gone) => JoinMode::Gone,
            (_, Join::Always) => JoinMode::Always,
        };
        Request {
            key: key_of(request),
            content: parsed.content,
            server: server.index,
            tool: parsed.tool.clone(),
            has_effect: has_effect(&rpc.method),
            replay: self.replay_setting(server, own),
            join,
            join_window: millis(calls.join_window),
            origin: Origin::Operator,
            task: rpc.task.map(|wish| TaskRequest { ttl: wish.granted_ttl_ms() }),
            deadline: None,
            timeout: self.timeout_of(server, parsed).map(millis),
            age: written_ago(request),
            session,
            continues: self.continues_pending_call(new),
            hands_back: rpc.hand_back && self.options.pool.is_some(),
            needs_permit: !is_listen && !is_initialize && !is_for_catalog,
            reserves: new.may_need_slot(),
            guarded: !is_plain_request(&rpc.method),
            share: self.share_of(request.from.role.as_deref()),
            exclusive: None,
        }
    }

    /// Whether the call waits for a synced START, as far as is known before it starts.
    pub(super) fn needs_synced_start(&self, slot: &Slot) -> bool {
        let (parsed, server) = (&slot.parsed, &slot.server);
        let own = parsed.named_tool().and_then(|tool| own_name(server.config.prefix.as_deref(), tool));
        has_effect(&parsed.rpc.method) && self.replay_setting(server, own) != ReplaySetting::Safe
    }

    /// The time limit of the named item. A listen lasts as long as its client.
    fn timeout_of(&self, server: &Server, parsed: &ParsedCall) -> Option<Duration> {
        let config = &server.config;
        match parsed.key() {
            Some(NameKey::Tool(visible)) => {
                let own = own_name(config.prefix.as_deref(), visible);
                own.map_or(config.timeout, |own| config.timeout_of(own))
            }
            _ if parsed.rpc.method == LISTEN => None,
            _ => config.timeout,
        }
    }

    /// Whether the request answers a server's request of a suspended call, which was approved with that call. Only modern
    /// clients answer by repeating the request.
    fn continues_pending_call(&self, new: &NewCall) -> bool {
        let rpc = &new.parsed.rpc;
        let repetition = Repetition::of(rpc.params.as_ref()).ok().flatten().filter(|_| rpc.client.era == Era::Modern);
        let identity = || super::suspended::CallIdentity::of(&new.request, &new.parsed, &new.server);
        repetition.is_some_and(|repetition| self.pending_calls.knows(&identity(), &repetition.state))
    }
}

/// Time since the call was created, by its caller's clock. A wrong clock costs one more query of the broker, or the
/// next check cancels the call.
fn written_ago(request: &Arc<InboxMessage>) -> Millis {
    let ago = jiff::Timestamp::now().as_nanosecond() - i128::from(request.created_at.0);
    u64::try_from(ago / 1_000_000).unwrap_or_default()
}

pub fn millis(time: Duration) -> Millis {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
