//! The set of all rules and limits, and its built-in defaults.

use crate::index::{Index, Servers};
use crate::limits::Limit;
use crate::offers::HostRules;
use crate::pattern::Pattern;
use crate::pointer::Pointers;
use crate::question::Effect;
use crate::read;
use crate::rule::Rule;
use crate::send::Recipients;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_base::Share;
use toolbus_config::{ConfigError, Document, Position, Warning};

/// The roles, limits and hosts of a toolbus.toml, indexed for fast decisions. The default is [`PolicySet::built_in`].
#[derive(Debug, Clone)]
pub struct PolicySet {
    /// `None` only for a shared token without `[roles]`: every role may use everything.
    pub(crate) roles: Option<BTreeMap<String, Role>>,
    /// The rules of roles without an entry and of callers without a role. `None` denies everything.
    pub(crate) others: Option<Role>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) limit_index: Index,
    /// The names that hosts may offer.
    pub(crate) hosts: HostRules,
    /// Whether the roles come from the file.
    pub(crate) own_roles: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Role {
    pub rules: Vec<Rule>,
    pub index: Index,
    /// Servers for which some rule may allow something.
    pub visible: Servers,
    /// Servers of which everything is denied.
    pub fully_denied: Servers,
    /// Servers of which everything is allowed, unless another rule matches.
    pub fully_allowed: Servers,
    /// Servers of which something is denied or needs approval.
    pub restricted: Servers,
    /// Servers that a permitting rule names or matches as a whole.
    pub named: Servers,
    pub pointers: Pointers,
    pub limit: Option<Limit>,
    pub recipients: Recipients,
    pub approves: bool,
    /// How much of the broker and of a host one agent may use.
    pub share: Option<Share>,
    /// True if the file has no entry for the operator and the built-in rules apply.
    pub implied: bool,
}

/// Keeps its built-in rules next to the roles of a file, unless the file has an entry for it.
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
    /// Parses the text of a toolbus.toml and reads its rules.
    pub fn read(text: &str) -> Result<(Self, Vec<Warning>), ConfigError> {
        Self::read_from(&Document::parse_toml(text)?)
    }

    /// Reads the `[roles]`, `[limits]` and `[hosts]` of a toolbus.toml. If it has no roles, the built-in ones
    /// ([`PolicySet::built_in`]) apply; if it has some, only the built-in operator is added.
    pub fn read_from(file: &Document) -> Result<(Self, Vec<Warning>), ConfigError> {
        let (mut set, warnings) = read::read(file)?;
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
        let built_in = Document::parse_toml(BUILT_IN).and_then(|file| read::read(&file));
        let (mut set, _) = built_in.expect("the built-in rules are valid");
        let rules = set.roles.iter_mut().flatten().flat_map(|(_, role)| &mut role.rules);
        rules.for_each(|rule| rule.position = Position::NOWHERE);
        Self { own_roles: false, ..set }
    }

    /// Without any rule.
    pub(crate) fn empty() -> Self {
        Self {
            roles: None,
            others: None,
            limits: Vec::new(),
            limit_index: Index::default(),
            hosts: HostRules::new(),
            own_roles: false,
        }
    }

    /// Every role may use everything and send to every mailbox. Only for brokers without identities.
    pub fn everyone() -> Self {
        Self { roles: None, ..Self::built_in() }
    }

    /// Rules made by code: each of these roles may use the tools with exactly these names, every other role nothing.
    pub fn of_tools<R, T, I>(roles: impl IntoIterator<Item = (R, I)>) -> Self
    where
        R: AsRef<str>,
        T: AsRef<str>,
        I: IntoIterator<Item = T>,
    {
        let role = |(name, tools): (R, I)| {
            let name = name.as_ref();
            (name.to_owned(), Role::allowing(name, tools.into_iter().map(|tool| Pattern::exact(tool.as_ref()))))
        };
        let roles = Some(roles.into_iter().map(role).collect());
        Self { roles, own_roles: true, ..Self::empty() }
    }

    /// Lets roles without an entry, and callers without a role, use everything.
    pub fn with_others_unrestricted(self) -> Self {
        Self { others: Some(Role::allowing("*", [Pattern::everything()])), ..self }
    }

    /// Adapts the set to a shared token, whose holders choose their role freely: if the file has no `[roles]`, every
    /// role may use everything.
    pub fn for_shared_token(self) -> Self {
        if self.own_roles { self } else { Self { roles: None, ..self } }
    }

    /// Whether the file has roles.
    pub fn has_own_roles(&self) -> bool {
        self.own_roles
    }

    /// Whether every role may use everything.
    pub fn is_everyone(&self) -> bool {
        self.roles.is_none()
    }

    /// The roles that have rules. Agents of any other role may use nothing.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.iter().flatten().map(|(name, _)| name.as_str())
    }

    /// The roles that the file has an entry for.
    pub fn named_roles(&self) -> impl Iterator<Item = &str> {
        let roles = self.roles.iter().flatten().filter(|(_, role)| self.own_roles && !role.implied);
        roles.map(|(name, _)| name.as_str())
    }

    /// Whether an agent of the role may send plain messages to the mailbox. `role_of` returns the role of the mailbox's
    /// owner; it is called only if a rule refers to roles.
    pub fn may_message<R: AsRef<str>>(
        &self,
        role: Option<&str>,
        mailbox: &str,
        role_of: impl FnOnce(&str) -> Option<R>,
    ) -> bool {
        match &self.roles {
            None => true,
            Some(_) => self.role(role).is_some_and(|role| role.recipients.contain(mailbox, role_of)),
        }
    }

    /// Whether there is a mailbox that an agent of the role may send plain messages to.
    pub fn may_message_any(&self, role: Option<&str>) -> bool {
        match &self.roles {
            None => true,
            Some(_) => self.role(role).is_some_and(|role| !role.recipients.is_empty()),
        }
    }

    /// Whether an agent of the role may decide about calls that wait for approval.
    pub fn may_approve(&self, role: Option<&str>) -> bool {
        match &self.roles {
            None => true,
            Some(_) => self.role(role).is_some_and(|role| role.approves),
        }
    }

    /// How much of each resource of the broker and of a host an agent of the role may use.
    pub fn share(&self, role: Option<&str>) -> Option<Share> {
        self.role(role)?.share
    }

    /// Whether an agent of the role may use everything of the server without approval.
    pub fn may_use_all(&self, role: Option<&str>, server: &str) -> bool {
        let all = |role: &Role| role.fully_allowed.contain(server) && !role.restricted.contain(server);
        self.is_everyone() || self.role(role).is_some_and(all)
    }

    /// Whether the role has unrestricted access: an `allow` for everything, and no `deny` or `ask`.
    pub fn may_use_everything(&self, role: Option<&str>) -> bool {
        let is_all = |rule: &Rule| rule.pattern.server.is_none() && rule.matches_all_names();
        let all =
            |role: &Role| role.rules.iter().any(is_all) && role.rules.iter().all(|rule| rule.effect == Effect::Allow);
        self.is_everyone() || self.role(role).is_some_and(all)
    }

    /// Whether a permitting rule of the role names the server or matches all names.
    pub fn speaks_of_server(&self, role: Option<&str>, server: &str) -> bool {
        self.is_everyone() || self.role(role).is_some_and(|role| role.named.contain(server))
    }

    /// The rules of the role; `None` if it may use nothing.
    pub(crate) fn role(&self, name: Option<&str>) -> Option<&Role> {
        name.and_then(|name| self.roles.as_ref()?.get(name)).or(self.others.as_ref())
    }
}

impl Role {
    /// The operator may send to every mailbox and approve calls unless its entry says otherwise.
    pub fn operator() -> Self {
        Self { recipients: Recipients::every_mailbox(), approves: true, ..Self::default() }
    }

    /// A role made by code, with unconditional rules.
    fn allowing(name: &str, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        let (role, conditions, position): (Arc<str>, Arc<_>, _) = (name.into(), [].into(), Position::NOWHERE);
        let rule = |pattern| {
            let (role, conditions) = (Arc::clone(&role), Arc::clone(&conditions));
            Rule { role, effect: Effect::Allow, pattern, conditions, position }
        };
        let rules = patterns.into_iter().map(rule).collect();
        Self::default().with_rules(rules, Pointers::default()).expect("patterns of literal names compile")
    }

    /// Builds the indexes over the rules.
    pub fn with_rules(mut self, rules: Vec<Rule>, pointers: Pointers) -> Result<Self, globset::Error> {
        self.index = Index::new(rules.iter().map(|rule| &rule.pattern))?;
        let server = |rule: &'_ Rule| rule.pattern.server.clone();
        let visible: Vec<_> = rules.iter().filter(|rule| rule.effect != Effect::Deny).map(server).collect();
        let all = |effect: Effect| move |rule: &&Rule| rule.effect == effect && rule.matches_all_names();
        let fully_denied: Vec<_> = rules.iter().filter(all(Effect::Deny)).map(server).collect();
        let fully_allowed: Vec<_> = rules.iter().filter(all(Effect::Allow)).map(server).collect();
        let restricted: Vec<_> = rules.iter().filter(|rule| rule.effect != Effect::Allow).map(server).collect();
        let names_server = |rule: &&Rule| rule.pattern.server.is_some() || rule.pattern.matches_any_name();
        let named: Vec<_> =
            rules.iter().filter(|rule| rule.effect != Effect::Deny).filter(names_server).map(server).collect();
        self.visible = Servers::new(visible.iter().map(Option::as_ref))?;
        self.named = Servers::new(named.iter().map(Option::as_ref))?;
        self.fully_denied = Servers::new(fully_denied.iter().map(Option::as_ref))?;
        self.fully_allowed = Servers::new(fully_allowed.iter().map(Option::as_ref))?;
        self.restricted = Servers::new(restricted.iter().map(Option::as_ref))?;
        (self.rules, self.pointers) = (rules, pointers);
        Ok(self)
    }

    pub fn sees(&self, server: &str) -> bool {
        self.visible.contain(server) && !self.fully_denied.contain(server)
    }
}
