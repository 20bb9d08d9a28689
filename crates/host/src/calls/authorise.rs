//! Authorises requests and notifications. No other code decides about them.

use super::slot::Slot;
use crate::catalog::collision;
use crate::catalog::names::own_name;
use crate::failure;
use crate::host::Host;
use crate::pins::{CallRefusal, PinnedServer};
use crate::translate::listen::{Filter, LISTEN};
use std::sync::Arc;
use toolbus_call::{Grant, Limit};
use toolbus_mcp::{
    ListKind, Members, MembersError, NameKey, Notify, RpcError, codes, is_plain_notification, is_plain_request,
    required_name,
};
use toolbus_policy::{Arguments, Decision, Effect, Item, LimitKind, PolicySet, Question, Reason};
use toolbus_protocol::ErrorCode;

/// An authorised request.
pub struct Authorised {
    /// Allow or ask.
    pub effect: Effect,
    /// The rule, in words. Empty for a repeated decision that allows the request.
    pub why: String,
    pub max_result: Option<(u64, LimitKind)>,
    grant: Grant,
}

impl Authorised {
    pub fn grant(&self) -> Grant {
        self.grant.clone()
    }

    /// Without limits, for requests that end or unblock a call which may hold the permit they would wait for.
    fn unlimited(self) -> Self {
        Self { max_result: None, grant: Grant { ask: self.grant.ask, ..Grant::default() }, ..self }
    }
}

impl Host {
    /// Decides about a request. `again`: a repeated decision, which is not audited if it allows the request.
    pub fn authorise(&self, slot: &Slot, again: bool) -> Result<Arc<Authorised>, RpcError> {
        let key = slot.parsed.name.as_ref().map_err(Clone::clone)?.as_ref();
        let mut authorised = self.decide(slot, key, again)?;
        let own = slot.parsed.named_tool();
        let own = own.and_then(|visible| own_name(slot.server.config.prefix.as_deref(), visible));
        authorised.grant.replay = self.replay_setting(&slot.server, own);
        let authorised = Arc::new(authorised);
        slot.state().authorised = Some(Arc::clone(&authorised));
        Ok(authorised)
    }

    /// Whether a client's notification may be forwarded to its server.
    pub fn authorise_notification(&self, role: Option<&str>, notify: &Notify) -> bool {
        let (method, server) = (notify.method.as_str(), notify.server.as_str());
        // A notification with a name that rules could match would bypass the policy.
        let is_unnamed = matches!(required_name(method, notify.params.as_ref()), Ok(None));
        let may_use_all = || self.options.policy.current().may_use_all(role, server);
        is_unnamed && self.may_see(role, server) && (is_plain_notification(method) || may_use_all())
    }

    fn decide(&self, slot: &Slot, key: Option<&NameKey>, again: bool) -> Result<Authorised, RpcError> {
        let policy = self.options.policy.current();
        let params = Members::of(slot.parsed.rpc.params.as_ref()).map_err(bad_params)?;
        let given = params.get("arguments").map_or(Arguments::Absent, |arguments| Arguments::Known(arguments.get()));
        let is_completion = slot.parsed.rpc.method == "completion/complete";
        let (item, arguments) = match key {
            Some(NameKey::Tool(name)) => (Item::Tool(name), given),
            // Rules on arguments can't be applied to a completion, which has none yet.
            Some(NameKey::Prompt(name)) if is_completion => (Item::Prompt(name), Arguments::Unknown),
            Some(NameKey::Prompt(name)) => (Item::Prompt(name), given),
            Some(NameKey::Uri(uri)) => (Item::Resource(uri), Arguments::Absent),
            Some(NameKey::Task(task)) => return self.authorise_task(slot, &policy, task),
            None => {
                refuse_unknown_method(slot, &policy)?;
                (Item::Server, Arguments::Absent)
            }
        };
        let authorised = permitted(slot, &policy, item, arguments, again)?;
        if is_completion && authorised.effect == Effect::Ask {
            // Completions are sent for each keystroke, so they can't require an approval each.
            return Err(failure::not_allowed(item, slot.server.name(), slot.role()));
        }
        if slot.parsed.rpc.method == LISTEN {
            let filter = Filter::of_listen(slot.parsed.rpc.params.as_ref()).map_err(bad_params)?;
            for uri in &filter.uris {
                let item = Item::Resource(uri);
                if permitted(slot, &policy, item, Arguments::Absent, again)?.effect == Effect::Ask {
                    return Err(failure::not_allowed(item, slot.server.name(), slot.role()));
                }
            }
        }
        self.refuse_lost_name(slot, key)?;
        self.check_definition(slot, key)?;
        Ok(authorised)
    }

    /// A request about a task needs the rights to the call that created it. A task whose creator is not remembered is
    /// refused.
    fn authorise_task(&self, slot: &Slot, policy: &PolicySet, task: &str) -> Result<Authorised, RpcError> {
        let owner = self.options.policy.task_owners.owner(slot.server.name(), task);
        let agent = slot.agent();
        let owner = match owner {
            Some(owner) if policy.is_everyone() || owner.agent == agent => owner,
            None if policy.is_everyone() => return permitted(slot, policy, Item::Server, Arguments::Unknown, false),
            // The same message in both cases, so as not to reveal which tasks exist.
            _ => {
                let message = format!("agent '{agent}' has not created such a task, or it was forgotten");
                return Err(failure::bus(ErrorCode::NotAllowed, message));
            }
        };
        let mut authorised = permitted(slot, policy, Item::Tool(&owner.tool), Arguments::Unknown, false)?;
        // An approval was obtained when the task was created.
        (authorised.effect, authorised.grant.ask) = (Effect::Allow, false);
        let unblocks = matches!(slot.parsed.rpc.method.as_str(), "tasks/cancel" | "tasks/update");
        Ok(if unblocks { authorised.unlimited() } else { authorised })
    }

    /// Refuses a name that now belongs to another server.
    fn refuse_lost_name(&self, slot: &Slot, key: Option<&NameKey>) -> Result<(), RpcError> {
        let Some(key) = key else { return Ok(()) };
        let Some(owner) = self.catalog.owners().lost_to(key, slot.server.index) else { return Ok(()) };
        let (kind, name) = match key {
            NameKey::Tool(name) => (ListKind::Tools, name),
            NameKey::Prompt(name) => (ListKind::Prompts, name),
            NameKey::Uri(name) | NameKey::Task(name) => (ListKind::Resources, name),
        };
        let message = collision(kind, name, self.servers[owner].name(), slot.server.name());
        Err(failure::bus(ErrorCode::NameCollision, message))
    }

    /// A tool is called only if its definition is approved, as the server gave it last and, once there is a connection, as
    /// that connection gives it.
    fn check_definition(&self, slot: &Slot, key: Option<&NameKey>) -> Result<(), RpcError> {
        let Some(NameKey::Tool(visible)) = key else { return Ok(()) };
        let (pins, config) = (&self.options.pins, &slot.server.config);
        let server = PinnedServer::from(config);
        let Some(own) = own_name(config.prefix.as_deref(), visible) else { return Ok(()) };
        let listed = slot.state().listed.clone();
        let checked = match listed {
            _ if pins.is_held(server, own) => Err(CallRefusal::HeldBack),
            Some(listed) => pins.check_call(server, &listed, own, config.dynamic_tools),
            None => Ok(()),
        };
        checked.map_err(|refusal| match refusal {
            CallRefusal::HeldBack => failure::held_back(visible, server.name),
            CallRefusal::Unlisted => failure::unlisted(visible),
        })
    }
}

/// Vendor methods are beyond the rules, so they require full rights at the server. `tasks/list` would show tasks of
/// other agents.
fn refuse_unknown_method(slot: &Slot, policy: &PolicySet) -> Result<(), RpcError> {
    let (method, server, role) = (slot.parsed.rpc.method.as_str(), slot.server.name(), slot.role());
    let may = match method {
        "tasks/list" => policy.is_everyone(),
        _ => is_plain_request(method) || policy.may_use_all(role, server),
    };
    if may { Ok(()) } else { Err(failure::method_not_allowed(method, server, role)) }
}

fn permitted(
    slot: &Slot,
    policy: &PolicySet,
    item: Item<'_>,
    arguments: Arguments<'_>,
    again: bool,
) -> Result<Authorised, RpcError> {
    let (role, server) = (slot.role(), slot.server.name());
    let mut decision: Decision<'_> = policy.decide(&Question { role, server, item, arguments });
    if matches!(arguments, Arguments::Unknown) {
        // For unknown arguments the policy assumes a list, which has no limits; this is a request.
        decision.limits = policy.limits_of(role, server, item);
    }
    match (decision.effect, &decision.reason) {
        (Effect::Deny, Reason::BadArguments(_, problem)) => {
            let message = format!("{} '{}': {problem}", item.noun(), item.name().unwrap_or(server));
            Err(failure::bus(ErrorCode::BadArguments, message))
        }
        (Effect::Deny, _) => Err(failure::not_allowed(item, server, role)),
        (effect, reason) => {
            let is_shown = !again || effect == Effect::Ask;
            let why = if is_shown { reason.to_string() } else { String::new() };
            let max_result = decision.max_result().map(|(size, limit)| (size, limit.kind.clone()));
            Ok(Authorised { effect, why, max_result, grant: grant_of(&decision) })
        }
    }
}

fn grant_of(decision: &Decision<'_>) -> Grant {
    let counted = decision.limits.iter().filter(|limit| limit.rate.is_some() || limit.concurrency.is_some());
    let limits =
        counted.map(|limit| Limit { kind: limit.kind.clone(), rate: limit.rate, concurrency: limit.concurrency });
    let time_limit = decision
        .deadline()
        .map(|(time, limit)| (super::request::millis(time), format!("{} allows {time:?}", limit.kind)));
    Grant { ask: decision.effect == Effect::Ask, time_limit, limits: limits.collect(), ..Grant::default() }
}

pub fn bad_params(error: MembersError) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, format!("Invalid params: {error}"))
}
