//! All rules and limits together, and where they come from.

use crate::index::{Index, Servers};
use crate::limits::Limit;
use crate::pointer::Pointers;
use crate::question::Effect;
use crate::read::{self, PolicyError, Position, Warning};
use crate::rule::Rule;
use crate::send::Recipients;
use std::collections::BTreeMap;

/// What toolbus.toml says about who may use what. Made once, asked often.
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    /// None: there are no roles, and everybody may use everything.
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
    /// It is there because the operator always is, not because the file names it.
    pub implied: bool,
}

/// The role that keeps its say over messages and approvals whatever the file allows it to use.
pub(crate) const OPERATOR: &str = "operator";
pub(crate) const LOCAL: &str = "local";

const BUILT_IN: &str = "[roles.local]\nallow = [\"**\"]\n[roles.operator]\nallow = [\"**\"]\n";

impl PolicySet {
    /// From the text of a toolbus.toml, of which only `[roles]` and `[limits]` are read. Without any role it is the
    /// [built-in](Self::built_in) ones that count.
    pub fn read(text: &str) -> Result<(Self, Vec<Warning>), PolicyError> {
        let (mut set, warnings) = read::read(text)?;
        if set.roles.is_none() {
            set.roles = Self::built_in().roles;
        }
        Ok((set, warnings))
    }

    /// `local` and `operator` may use everything, nobody else anything.
    pub fn built_in() -> Self {
        let (mut set, _) = read::read(BUILT_IN).expect("the built-in rules can be read");
        let rules = set.roles.iter_mut().flatten().flat_map(|(_, role)| &mut role.rules);
        rules.for_each(|rule| rule.position = Position::NOWHERE);
        Self { own_roles: false, ..set }
    }

    /// Everybody whom the broker lets in may use everything and write to everybody.
    pub fn everyone() -> Self {
        Self::default()
    }

    /// For brokers that know no identities: where the file names no roles, everybody may use everything.
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

    /// The roles that have rules of their own. Whoever has none of them may use nothing.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        let roles = self.roles.iter().flatten();
        roles.filter(|(_, role)| !role.implied).map(|(name, _)| name.as_str())
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
    /// Whoever is the operator, without a word about it.
    pub fn operator() -> Self {
        Self { recipients: Recipients::everybody(), approves: true, implied: true, ..Self::default() }
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
