//! Authorises requests and enforces the limits of the rule that allows them. No other code decides about requests.

use super::{Job, Stop, bad_params};
use crate::approvals;
use crate::catalog::collision;
use crate::catalog::names::own_name;
use crate::failure;
use crate::limits::CallLimits;
use crate::pins::PinnedServer;
use crate::translate::listen::{Filter, LISTEN};
use tokio::time::Instant;
use toolbus_mcp::{ListKind, Members, NameKey, Outcome, RpcError, is_plain_request};
use toolbus_policy::{Arguments, Decision, Effect, Item, PolicySet, Question, Reason};
use toolbus_protocol::{ErrorCode, principal_of};

/// An authorised request.
pub struct Authorised {
    /// Allow or ask.
    pub effect: Effect,
    /// The rule, in words.
    pub why: String,
    pub limits: CallLimits,
}

impl Job {
    pub(super) fn authorise(&self, key: Option<&NameKey>) -> Result<Authorised, RpcError> {
        let policy = self.host.options.policy.current();
        let params = Members::of(self.rpc.params.as_deref()).map_err(bad_params)?;
        let given = params.get("arguments").map_or(Arguments::Absent, Arguments::Known);
        let (item, arguments) = match key {
            Some(NameKey::Tool(name)) => (Item::Tool(name), given),
            // Rules on arguments can't be applied to a completion, which has none yet.
            Some(NameKey::Prompt(name)) if self.is_completion() => (Item::Prompt(name), Arguments::Unknown),
            Some(NameKey::Prompt(name)) => (Item::Prompt(name), given),
            Some(NameKey::Uri(uri)) => (Item::Resource(uri), Arguments::Absent),
            Some(NameKey::Task(task)) => return self.authorise_task(&policy, task),
            None => {
                self.refuse_unknown_method(&policy)?;
                (Item::Server, Arguments::Absent)
            }
        };
        let authorised = self.permitted(&policy, item, arguments)?;
        if self.is_completion() && authorised.effect == Effect::Ask {
            // Completions are sent for each keystroke, so they can't require an approval each.
            return Err(failure::not_allowed(item, self.server.name(), self.caller.role()));
        }
        if self.rpc.method == LISTEN {
            let filter = Filter::of_listen(self.rpc.params.as_deref()).map_err(bad_params)?;
            for uri in &filter.uris {
                let (item, role) = (Item::Resource(uri), self.caller.role());
                if self.permitted(&policy, item, Arguments::Absent)?.effect == Effect::Ask {
                    return Err(failure::not_allowed(item, self.server.name(), role));
                }
            }
        }
        self.refuse_changed_target(key)?;
        Ok(authorised)
    }

    /// Refuses a name that now belongs to another server, or a tool whose definition is not approved.
    pub(super) fn refuse_changed_target(&self, key: Option<&NameKey>) -> Result<(), RpcError> {
        self.refuse_lost_name(key)?;
        self.refuse_held_back(key)
    }

    /// Vendor methods are beyond the rules, so they require full rights at the server. `tasks/list` would show tasks of
    /// other agents.
    fn refuse_unknown_method(&self, policy: &PolicySet) -> Result<(), RpcError> {
        let (method, server, role) = (self.rpc.method.as_str(), self.server.name(), self.caller.role());
        let may = match method {
            "tasks/list" => policy.is_everyone(),
            _ => is_plain_request(method) || policy.may_use_all(role, server),
        };
        if may { Ok(()) } else { Err(failure::method_not_allowed(method, server, role)) }
    }

    fn is_completion(&self) -> bool {
        self.rpc.method == "completion/complete"
    }

    fn permitted(&self, policy: &PolicySet, item: Item<'_>, arguments: Arguments<'_>) -> Result<Authorised, RpcError> {
        let (role, server) = (self.caller.role(), self.server.name());
        let mut decision: Decision<'_> = policy.decide(&Question { role, server, item, arguments });
        if matches!(arguments, Arguments::Unknown) {
            // For unknown arguments the policy assumes a list, which has no limits; this is a request.
            decision.limits = policy.limits_of(role, server, item);
        }
        match (decision.effect, decision.reason) {
            (Effect::Deny, Reason::BadArguments(_, problem)) => {
                let message = format!("{} '{}': {problem}", item.noun(), item.name().unwrap_or(server));
                Err(failure::bus(ErrorCode::BadArguments, message))
            }
            (Effect::Deny, _) => Err(failure::not_allowed(item, server, role)),
            (effect, reason) => Ok(Authorised { effect, why: reason.to_string(), limits: CallLimits::of(&decision) }),
        }
    }

    /// A request about a task needs the rights to the call that created it. A task whose creator is not remembered is
    /// refused.
    fn authorise_task(&self, policy: &PolicySet, task: &str) -> Result<Authorised, RpcError> {
        let owner = self.host.options.policy.task_owners.owner(self.server.name(), task);
        let agent = principal_of(self.caller.mailbox());
        let owner = match owner {
            Some(owner) if policy.is_everyone() || owner.agent == agent => owner,
            None if policy.is_everyone() => return self.permitted(policy, Item::Server, Arguments::Unknown),
            // The same message in both cases, so as not to reveal which tasks exist.
            _ => {
                let message = format!("agent '{agent}' has not created such a task, or it was forgotten");
                return Err(failure::bus(ErrorCode::NotAllowed, message));
            }
        };
        // An approval was obtained when the task was created.
        let mut authorised = self.permitted(policy, Item::Tool(&owner.tool), Arguments::Unknown)?;
        authorised.effect = Effect::Allow;
        if matches!(self.rpc.method.as_str(), "tasks/cancel" | "tasks/update") {
            // They end or unblock the call that may hold the permit they would wait for.
            authorised.limits = CallLimits::default();
        }
        Ok(authorised)
    }

    fn refuse_lost_name(&self, key: Option<&NameKey>) -> Result<(), RpcError> {
        let Some(key) = key else { return Ok(()) };
        let Some(owner) = self.host.catalog.owners().lost_to(key, self.server.index) else { return Ok(()) };
        let (kind, name) = match key {
            NameKey::Tool(name) => (ListKind::Tools, name),
            NameKey::Prompt(name) => (ListKind::Prompts, name),
            NameKey::Uri(name) | NameKey::Task(name) => (ListKind::Resources, name),
        };
        let message = collision(kind, name, self.host.servers[owner].name(), self.server.name());
        Err(failure::bus(ErrorCode::NameCollision, message))
    }

    /// A tool whose definition is not approved is not called.
    fn refuse_held_back(&self, key: Option<&NameKey>) -> Result<(), RpcError> {
        let Some(NameKey::Tool(visible)) = key else { return Ok(()) };
        let config = &self.server.config;
        let own = own_name(config.prefix.as_deref(), visible);
        let server = PinnedServer { name: &config.name, mode: config.pin };
        if !own.is_some_and(|own| self.host.options.pins.is_held(server, own)) {
            return Ok(());
        }
        let message =
            format!("tool {visible:?} of server {:?} is held back: its definition is not approved", config.name);
        Err(failure::bus(ErrorCode::HeldBack, message))
    }

    /// Applies the rule's limits, and waits for approval if the rule requires it. Returns when the request may run.
    pub(super) async fn wait_for_limits(&mut self, authorised: &Authorised, key: Option<&NameKey>) -> Result<(), Stop> {
        let limits = &authorised.limits;
        if let Some((time, kind)) = &limits.deadline {
            self.caller.cancel.set_limit(Instant::now() + *time, format!("{kind} allows {time:?}"));
        }
        let policy = &self.host.options.policy;
        policy.limiters.count_call(limits).map_err(|refused| failure::rate_limited(&refused))?;
        if authorised.effect == Effect::Ask {
            approvals::wait_for_approval(self, authorised).await?;
            // The policy or the tool may have changed meanwhile.
            self.authorise(key)?;
            self.is_approved = true;
        }
        self.wait_for_task_permits().await?;
        // Session order before permits: a request that waits for its predecessors must not hold a permit that they
        // need.
        self.wait_for_order().await?;
        let policy = &self.host.options.policy;
        let permits = tokio::select! {
            biased;
            permits = policy.limiters.acquire(limits) => permits,
            () = self.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        self.permits.extend(permits);
        Ok(())
    }

    /// Authorises a task again when it starts, because the policy may have changed while it waited.
    pub(super) async fn authorise_again(&self) -> Result<(), Stop> {
        let Some(name) = self.subject.name.clone().filter(|_| self.rpc.task.is_some()) else { return Ok(()) };
        let decided = match self.authorise(Some(&NameKey::Tool(name))) {
            Ok(Authorised { effect: Effect::Ask, .. }) if !self.is_approved => {
                let message = "the policy has changed and now requires approval for the task; start it again";
                Err(failure::bus(ErrorCode::NotAllowed, message))
            }
            decided => decided,
        };
        if decided.is_err() {
            self.audit_decision(&decided).await?;
        }
        decided.map(drop).map_err(Stop::from)
    }

    /// Replaces an outcome that exceeds the rule's size limit by an error.
    pub(super) fn within_size(&self, authorised: &Authorised, outcome: Outcome) -> Outcome {
        let Some((max, kind)) = &authorised.limits.max_result else { return outcome };
        let (Outcome::Result(text) | Outcome::Error(text)) = &outcome;
        let size = text.get().len();
        if size as u64 <= *max {
            return outcome;
        }
        let message = format!("the result has {size} bytes, but {kind} allows {max}");
        failure::bus(ErrorCode::ResultTooLarge, message).into()
    }
}
