//! All rules and limits together, and where they come from.

use crate::index::{Index, Servers};
use crate::limits::Limit;
use crate::pointer::Pointers;
use crate::question::Effect;
use crate::read::{self, PolicyError, Position, Warning};
use crate::rule::Rule;
use crate::send::Recipients;
use std::collections::BTreeMap;

/// What toolbus.toml says about who may use what. Made once, asked often. The default is [`PolicySet::built_in`].
#[derive(Debug, Clone)]
pub struct PolicySet {
    /// `None` only for a shared token without `[roles]`: every role may use everything.
    pub(crate) roles: Option<BTreeMap<String, Role>>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) limit_index: Index,
    /// Whether the roles stand in the file.
    pub(crate) own_roles: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Role {
    pub rules: Vec<Rule>,
    pub index: Index,
    /// Where some rule might allow something.
    pub open: Servers,
    /// Where everything is denied.
    pub closed: Servers,
    /// Where everything is allowed that nothing else is said about.
    pub whole: Servers,
    /// Where something is denied or has to be asked for.
    pub narrowed: Servers,
    /// Of which some rule speaks: by their names, or of all there is.
    pub named: Servers,
    pub pointers: Pointers,
    pub limit: Option<Limit>,
    pub recipients: Recipients,
    pub approves: bool,
    /// It has the built-in rules of the operator, because the file has no entry for it.
    pub implied: bool,
}

/// Keeps its built-in rules beside the roles of a file, unless the file has an entry for it.
pub(crate) const OPERATOR: &str = "operator";
pub(crate) const LOCAL: &str = "local";

const BUILT_IN: &str = "[roles.local]\nallow = [\"**\"]\n[roles.operator]\nallow = [\"**\"]\n";

/// Denies every role but those of the broker's own machine.
impl Default for PolicySet {
    fn default() -> Self {
        Self::built_in()
    }
}

impl PolicySet {
    /// From the text of a toolbus.toml, of which only `[roles]` and `[limits]` are read. The built-in roles
    /// ([`PolicySet::built_in`]) count where it names none; where it names some, only that of the operator does.
    pub fn read(text: &str) -> Result<(Self, Vec<Warning>), PolicyError> {
        let (mut set, warnings) = read::read(text)?;
        let mut built_in = Self::built_in().roles.unwrap_or_default();
        match &mut set.roles {
            None => set.roles = Some(built_in),
            Some(roles) if roles.contains_key(OPERATOR) => {}
            Some(roles) => {
                let operator = built_in.remove(OPERATOR).expect("the built-in rules have an operator");
                roles.insert(OPERATOR.to_owned(), Role { implied: true, ..operator });
            }
        }
        Ok((set, warnings))
    }

    /// The roles `local` and `operator` may use everything, every other role nothing.
    pub fn built_in() -> Self {
        let (mut set, _) = read::read(BUILT_IN).expect("the built-in rules can be read");
        let rules = set.roles.iter_mut().flatten().flat_map(|(_, role)| &mut role.rules);
        rules.for_each(|rule| rule.position = Position::NOWHERE);
        Self { own_roles: false, ..set }
    }

    /// Every role may use everything and write to every mailbox. Only for brokers that know no identities.
    pub fn everyone() -> Self {
        Self { roles: None, ..Self::built_in() }
    }

    /// For a shared token, with which a peer takes any role it likes: without `[roles]` in the file, every role may use
    /// everything.
    pub fn for_shared_token(self) -> Self {
        if self.own_roles { self } else { Self { roles: None, ..self } }
    }

    /// Whether the file names roles.
    pub fn has_own_roles(&self) -> bool {
        self.own_roles
    }

    /// Whether everybody may use everything.
    pub fn is_everyone(&self) -> bool {
        self.roles.is_none()
    }

    /// The roles that have rules. An agent of any other role may use nothing.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.iter().flatten().map(|(name, _)| name.as_str())
    }

    /// The roles that the file names.
    pub fn named_roles(&self) -> impl Iterator<Item = &str> {
        let roles = self.roles.iter().flatten().filter(|(_, role)| self.own_roles && !role.implied);
        roles.map(|(name, _)| name.as_str())
    }

    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        let of_roles = self.roles.iter().flatten().filter_map(|(_, role)| role.limit.as_ref());
        of_roles.chain(&self.limits)
    }

    /// Whether an agent of the role may put plain messages into that mailbox. The role of the mailbox's owner is asked
    /// for only where a rule is about roles.
    pub fn may_message<R: AsRef<str>>(
        &self,
        role: Option<&str>,
        mailbox: &str,
        role_of: impl FnOnce(&str) -> Option<R>,
    ) -> bool {
        match &self.roles {
            None => true,
            Some(roles) => {
                role.and_then(|role| roles.get(role)).is_some_and(|role| role.recipients.contain(mailbox, role_of))
            }
        }
    }

    /// Whether an agent of the role may decide calls that wait for approval.
    pub fn may_approve(&self, role: Option<&str>) -> bool {
        match &self.roles {
            None => true,
            Some(roles) => role.and_then(|role| roles.get(role)).is_some_and(|role| role.approves),
        }
    }

    /// Whether an agent of the role may use all that the server has, whatever it is, without being asked for anything.
    pub fn may_use_all(&self, role: Option<&str>, server: &str) -> bool {
        let Some(roles) = &self.roles else { return true };
        let role = role.and_then(|role| roles.get(role));
        role.is_some_and(|role| role.whole.contain(server) && !role.narrowed.contain(server))
    }

    /// Whether nothing at all is denied to the role, or has to be asked for.
    pub fn may_use_everything(&self, role: Option<&str>) -> bool {
        let Some(roles) = &self.roles else { return true };
        role.and_then(|role| roles.get(role)).is_some_and(|role| {
            let is_all = |rule: &Rule| rule.pattern.server.is_none() && rule.is_about_all_names();
            role.rules.iter().any(is_all) && role.rules.iter().all(|rule| rule.effect == Effect::Allow)
        })
    }

    /// Whether a rule of the role that allows something names the server, or is about everything.
    pub fn speaks_of_server(&self, role: Option<&str>, server: &str) -> bool {
        let Some(roles) = &self.roles else { return true };
        role.and_then(|role| roles.get(role)).is_some_and(|role| role.named.contain(server))
    }

    pub(crate) fn role(&self, name: &str) -> Option<&Role> {
        self.roles.as_ref()?.get(name)
    }
}

impl Role {
    /// The operator writes to every mailbox and decides approvals unless its entry says otherwise.
    pub fn operator() -> Self {
        Self { recipients: Recipients::everybody(), approves: true, ..Self::default() }
    }

    /// Prepares the rules for being asked.
    pub fn with_rules(mut self, rules: Vec<Rule>, pointers: Pointers) -> Result<Self, globset::Error> {
        self.index = Index::new(rules.iter().map(|rule| &rule.pattern))?;
        let server = |rule: &'_ Rule| rule.pattern.server.clone();
        let open: Vec<_> = rules.iter().filter(|rule| rule.effect != Effect::Deny).map(server).collect();
        let all = |effect: Effect| move |rule: &&Rule| rule.effect == effect && rule.is_about_all_names();
        let closed: Vec<_> = rules.iter().filter(all(Effect::Deny)).map(server).collect();
        let whole: Vec<_> = rules.iter().filter(all(Effect::Allow)).map(server).collect();
        let narrowed: Vec<_> = rules.iter().filter(|rule| rule.effect != Effect::Allow).map(server).collect();
        let speaks = |rule: &&Rule| rule.pattern.server.is_some() || rule.pattern.is_any_name();
        let named: Vec<_> =
            rules.iter().filter(|rule| rule.effect != Effect::Deny).filter(speaks).map(server).collect();
        self.open = Servers::new(open.iter().map(Option::as_ref))?;
        self.named = Servers::new(named.iter().map(Option::as_ref))?;
        self.closed = Servers::new(closed.iter().map(Option::as_ref))?;
        self.whole = Servers::new(whole.iter().map(Option::as_ref))?;
        self.narrowed = Servers::new(narrowed.iter().map(Option::as_ref))?;
        (self.rules, self.pointers) = (rules, pointers);
        Ok(self)
    }

    pub fn sees(&self, server: &str) -> bool {
        self.open.contain(server) && !self.closed.contain(server)
    }
}
