//! The decision: deny beats ask beats allow, and the default is deny.

use crate::condition::Holds;
use crate::limits::Limit;
use crate::normalize::{UriVariants, uri_variants};
use crate::pointer::{ArgumentsProblem, Found};
use crate::question::{Arguments, Decision, Effect, Item, Question, Reason};
use crate::rule::Rule;
use crate::set::{PolicySet, Role};

impl PolicySet {
    /// Decides whether the role may use the item, and which limits apply. This is the only decision function: lists and
    /// calls both use it.
    pub fn decide(&self, question: &Question<'_>) -> Decision<'_> {
        let (effect, reason) = self.evaluate(question);
        let is_call = effect != Effect::Deny && !matches!(question.arguments, Arguments::Unknown);
        let limits = if is_call { self.limits_of(question.role, question.server, question.item) } else { Vec::new() };
        Decision { effect, reason, limits }
    }

    /// The limits that apply when the role uses the item of the server.
    pub fn limits_of(&self, role: Option<&str>, server: &str, item: Item<'_>) -> Vec<&Limit> {
        let mut limits: Vec<&Limit> = Vec::new();
        let Some(name) = item.name() else { return limits };
        limits.extend(self.role(role).and_then(|role| role.limit.as_ref()));
        if !self.limits.is_empty() {
            let mut ids = self.limit_index.matching(server, name);
            let UriVariants { other, without_query } = other_uris(item);
            for other in [other, without_query].into_iter().flatten() {
                ids.extend(self.limit_index.matching(server, &other));
            }
            ids.sort_unstable();
            ids.dedup();
            limits.extend(ids.into_iter().map(|id| &self.limits[id]));
        }
        limits
    }

    fn evaluate(&self, question: &Question<'_>) -> (Effect, Reason<'_>) {
        if self.is_everyone() {
            return (Effect::Allow, Reason::Everyone);
        }
        let Some(role) = self.role(question.role) else {
            return (Effect::Deny, question.role.map_or(Reason::NoRole, |_| Reason::UnknownRole));
        };
        let Some(name) = question.item.name() else {
            let sees = role.sees(question.server);
            return if sees { (Effect::Allow, Reason::SomeRule) } else { (Effect::Deny, Reason::NoRule) };
        };
        let matching = Matching::find(role, question.server, name, &other_uris(question.item));
        let document = match question.arguments {
            // A resource read has no arguments but its URI.
            _ if matches!(question.item, Item::Resource(_)) => "{}",
            Arguments::Unknown => return matching.best_case(),
            Arguments::Absent => "{}",
            Arguments::Known(arguments) => arguments,
        };
        matching
            .for_call(document)
            .unwrap_or_else(|(rule, problem)| (Effect::Deny, Reason::BadArguments(rule, problem)))
    }
}

/// Other URIs that a server may take this resource's URI for.
fn other_uris(item: Item<'_>) -> UriVariants {
    match item {
        Item::Resource(uri) => uri_variants(uri),
        _ => UriVariants::default(),
    }
}

/// The rules whose pattern matches a name, before their conditions are evaluated.
struct Matching<'p> {
    role: &'p Role,
    /// Rules in file order. `Yes`: the pattern matches every interpretation of the name; `Maybe`: only some of them.
    rules: Vec<(&'p Rule, Holds)>,
}

type Outcome<'p> = (Effect, Reason<'p>);

impl<'p> Matching<'p> {
    fn find(role: &'p Role, server: &str, name: &str, others: &UriVariants) -> Self {
        let matching = |name: &str| {
            let mut ids = role.index.matching(server, name);
            ids.sort_unstable();
            ids
        };
        let ids = matching(name);
        if *others == UriVariants::default() {
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

    /// The most permissive outcome over all possible arguments: a conditional `allow` is assumed to hold and a
    /// conditional `deny` not to.
    fn best_case(&self) -> Outcome<'p> {
        let mut tally = Tally::default();
        let mut conditional_ask = None;
        for (rule, holds) in &self.rules {
            match (rule.effect, rule.is_conditional()) {
                (Effect::Deny, true) => {}
                (Effect::Ask, true) => conditional_ask = conditional_ask.or(Some(*rule)),
                _ => tally.add(rule, *holds),
            }
        }
        match (tally.outcome(), conditional_ask) {
            ((Effect::Deny, Reason::NoRule), Some(rule)) => (Effect::Ask, Reason::Rule(rule)),
            (outcome, _) => outcome,
        }
    }

    /// Parses the document only if a condition can change the outcome.
    fn for_call(&self, document: &str) -> Result<Outcome<'p>, (&'p Rule, ArgumentsProblem)> {
        let mut tally = Tally::default();
        for (rule, holds) in self.rules.iter().filter(|(rule, _)| !rule.is_conditional()) {
            tally.add(rule, *holds);
        }
        // Evaluates every rule that can change the outcome, so the result doesn't depend on the order of rules.
        let unconditional = tally.outcome();
        let could_matter = |rule: &Rule| match unconditional {
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

/// The first rule of each effect. A rule that may hold (`Maybe`) counts only where that makes the outcome stricter.
#[derive(Default)]
struct Tally<'p> {
    deny: Option<&'p Rule>,
    ask: Option<&'p Rule>,
    /// Turns an allowed call into one that needs approval, but doesn't permit a denied one.
    ask_if_allowed: Option<&'p Rule>,
    allow: Option<&'p Rule>,
}

impl<'p> Tally<'p> {
    fn add(&mut self, rule: &'p Rule, holds: Holds) {
        let slot = match (rule.effect, holds) {
            (_, Holds::No) | (Effect::Allow, Holds::Maybe) => return,
            (Effect::Deny, _) => &mut self.deny,
            (Effect::Ask, Holds::Yes) => &mut self.ask,
            (Effect::Ask, Holds::Maybe) => &mut self.ask_if_allowed,
            (Effect::Allow, Holds::Yes) => &mut self.allow,
        };
        slot.get_or_insert(rule);
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
