//! The decision. Deny beats ask beats allow, and what no rule is about is denied.

use crate::condition::Holds;
use crate::limits::Limit;
use crate::pointer::{ArgumentsProblem, Found};
use crate::question::{Arguments, Decision, Effect, Item, Question, Reason};
use crate::rule::Rule;
use crate::set::{PolicySet, Role};
use crate::shapes::{OtherAddresses, other_addresses};

impl PolicySet {
    pub fn decide(&self, question: &Question<'_>) -> Decision<'_> {
        let (effect, reason) = self.judge(question);
        let is_call = effect != Effect::Deny && !matches!(question.arguments, Arguments::Unknown);
        let limits = if is_call { self.limits_of(question.role, question.server, question.item) } else { Vec::new() };
        Decision { effect, reason, limits }
    }

    /// The limits on whoever of that role uses that.
    pub fn limits_of(&self, role: Option<&str>, server: &str, item: Item<'_>) -> Vec<&Limit> {
        let mut limits: Vec<&Limit> = Vec::new();
        let Some(name) = item.name() else { return limits };
        limits.extend(role.and_then(|role| self.role(role)).and_then(|role| role.limit.as_ref()));
        if !self.limits.is_empty() {
            let mut ids = self.limit_index.matching(server, name);
            let OtherAddresses { other, without_query } = other_names(item);
            for other in [other, without_query].into_iter().flatten() {
                ids.extend(self.limit_index.matching(server, &other));
            }
            ids.sort_unstable();
            ids.dedup();
            limits.extend(ids.into_iter().map(|id| &self.limits[id]));
        }
        limits
    }

    fn judge(&self, question: &Question<'_>) -> (Effect, Reason<'_>) {
        let Some(roles) = &self.roles else { return (Effect::Allow, Reason::Everyone) };
        let Some(name) = question.role else { return (Effect::Deny, Reason::NoRole) };
        let Some(role) = roles.get(name) else { return (Effect::Deny, Reason::UnknownRole) };
        let Some(name) = question.item.name() else {
            let sees = role.sees(question.server);
            return if sees { (Effect::Allow, Reason::SomeRule) } else { (Effect::Deny, Reason::NoRule) };
        };
        let matching = Matching::find(role, question.server, name, &other_names(question.item));
        let document = match question.arguments {
            // A resource is read by its address alone.
            _ if matches!(question.item, Item::Resource(_)) => "{}",
            Arguments::Unknown => return matching.best_case(),
            Arguments::Absent => "{}",
            Arguments::Known(arguments) => arguments.get(),
        };
        matching.of_call(document).unwrap_or_else(|(rule, problem)| (Effect::Deny, Reason::BadArguments(rule, problem)))
    }
}

/// What a resource's address also means.
fn other_names(item: Item<'_>) -> OtherAddresses {
    match item {
        Item::Resource(uri) => other_addresses(uri),
        _ => OtherAddresses::default(),
    }
}

/// The rules that are about a name, conditions aside.
struct Matching<'p> {
    role: &'p Role,
    /// With whether every reading of the name matches, or only some. In the order of the file.
    rules: Vec<(&'p Rule, Holds)>,
}

type Outcome<'p> = (Effect, Reason<'p>);

impl<'p> Matching<'p> {
    fn find(role: &'p Role, server: &str, name: &str, others: &OtherAddresses) -> Self {
        let matching = |name: &str| {
            let mut ids = role.index.matching(server, name);
            ids.sort_unstable();
            ids
        };
        let ids = matching(name);
        if *others == OtherAddresses::default() {
            return Self { role, rules: ids.into_iter().map(|id| (&role.rules[id], Holds::Yes)).collect() };
        }
        let in_other = others.other.as_deref().map(matching);
        let without_query = others.without_query.as_deref().map(matching).unwrap_or_default();
        let in_both = |id: &usize| {
            let in_other = in_other.as_ref().is_none_or(|others| others.binary_search(id).is_ok());
            in_other && ids.binary_search(id).is_ok()
        };
        let mut all = [ids.as_slice(), in_other.as_deref().unwrap_or_default(), &without_query].concat();
        all.sort_unstable();
        all.dedup();
        let rules = all.iter().map(|id| (&role.rules[*id], if in_both(id) { Holds::Yes } else { Holds::Maybe }));
        Self { role, rules: rules.collect() }
    }

    /// Could a call be allowed, whatever its arguments are? An `allow` may hold then, and a `deny` may not.
    fn best_case(&self) -> Outcome<'p> {
        let mut tally = Tally::default();
        let mut ask_perhaps = None;
        for (rule, holds) in &self.rules {
            match (rule.effect, rule.is_conditional()) {
                (Effect::Deny, true) => {}
                (Effect::Ask, true) => ask_perhaps = ask_perhaps.or(Some(*rule)),
                _ => tally.add(rule, *holds),
            }
        }
        match (tally.outcome(), ask_perhaps) {
            ((Effect::Deny, Reason::NoRule), Some(rule)) => (Effect::Ask, Reason::Rule(rule)),
            (outcome, _) => outcome,
        }
    }

    /// The document is read only if a condition could change something.
    fn of_call(&self, document: &str) -> Result<Outcome<'p>, (&'p Rule, ArgumentsProblem)> {
        let mut tally = Tally::default();
        for (rule, holds) in self.rules.iter().filter(|(rule, _)| !rule.is_conditional()) {
            tally.add(rule, *holds);
        }
        // All that could make a difference are looked at, so that their order makes none.
        let so_far = tally.outcome();
        let could_matter = |rule: &Rule| match so_far {
            (_, Reason::NoRule) => true,
            (effect, _) => rule.effect > effect,
        };
        let mut found: Option<Vec<Found<'_>>> = None;
        for (rule, holds) in self.rules.iter().filter(|(rule, _)| rule.is_conditional() && could_matter(rule)) {
            let found = match &mut found {
                Some(found) => found,
                empty => empty.insert(self.role.pointers.find(document).map_err(|problem| (*rule, problem))?),
            };
            let mut all_hold = *holds;
            for condition in rule.conditions.iter() {
                all_hold = all_hold.min(condition.holds(found).map_err(|problem| (*rule, problem))?);
            }
            tally.add(rule, all_hold);
        }
        Ok(tally.outcome())
    }
}

/// The first rule of each effect. What may or may not hold counts as if it held where that is stricter.
#[derive(Default)]
struct Tally<'p> {
    deny: Option<&'p Rule>,
    ask: Option<&'p Rule>,
    /// Makes an allowed call one that has to be asked for, but a forbidden one no better.
    ask_if_allowed: Option<&'p Rule>,
    allow: Option<&'p Rule>,
}

impl<'p> Tally<'p> {
    fn add(&mut self, rule: &'p Rule, holds: Holds) {
        let place = match (rule.effect, holds) {
            (_, Holds::No) | (Effect::Allow, Holds::Maybe) => return,
            (Effect::Deny, _) => &mut self.deny,
            (Effect::Ask, Holds::Yes) => &mut self.ask,
            (Effect::Ask, Holds::Maybe) => &mut self.ask_if_allowed,
            (Effect::Allow, Holds::Yes) => &mut self.allow,
        };
        place.get_or_insert(rule);
    }

    fn outcome(&self) -> Outcome<'p> {
        let rule = |effect, rule| (effect, Reason::Rule(rule));
        match (self.deny, self.ask, self.ask_if_allowed, self.allow) {
            (Some(deny), ..) => rule(Effect::Deny, deny),
            (None, Some(ask), ..) => rule(Effect::Ask, ask),
            (None, None, Some(ask), Some(_)) => rule(Effect::Ask, ask),
            (None, None, None, Some(allow)) => rule(Effect::Allow, allow),
            (None, None, _, None) => (Effect::Deny, Reason::NoRule),
        }
    }
}
