//! Names that cover others: a URI template covers URIs, and a namespace covers methods. Who owns such a name owns what it
//! covers, unless another host has announced that first.

use crate::name_owners::NameOwners;
use toolbus_mcp::{ListKind, UriTemplate};
use toolbus_policy::{confusable_key, normal_uri};

/// The end of the name of a namespace: `acme/*` stands for `acme` and for all methods that begin with `acme/`.
const ALL_METHODS: &str = "/*";

/// What a name is the name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// Of an item of a list.
    Item(ListKind),
    /// Of methods that the protocol does not define.
    Namespace,
}

impl NameKind {
    /// The kind in the stored form.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Item(kind) => kind.method(),
            Self::Namespace => "methods",
        }
    }

    /// Whether names of this kind cover others.
    pub(crate) fn covers(self) -> bool {
        matches!(self, Self::Item(ListKind::ResourceTemplates) | Self::Namespace)
    }
}

/// The name of a namespace.
pub(crate) fn namespace(methods: &str) -> String {
    format!("{methods}{ALL_METHODS}")
}

/// Names that are the same name have the same key.
pub(crate) fn key(kind: NameKind, name: &str) -> (String, String) {
    let text = match kind {
        NameKind::Item(ListKind::Resources) => visible(&normal_uri(name)),
        _ => visible(name),
    };
    (kind.label().to_owned(), text)
}

/// A name without what can't be seen.
pub(crate) fn visible(name: &str) -> String {
    confusable_key(name).chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect()
}

/// A name that covers or overlaps another one, and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covering {
    /// The host that owns it.
    pub owner: String,
    /// The name, in the form in which names are compared.
    pub name: String,
}

/// What the names of all other hosts cover.
pub(crate) struct Covered {
    templates: Vec<(Vec<UriTemplate>, Covering)>,
    /// Without [`ALL_METHODS`].
    namespaces: Vec<(String, Covering)>,
    any_resource: Option<Covering>,
}

impl Covered {
    /// What other hosts than this one own.
    pub fn by_others(owners: &NameOwners, host: &str) -> Self {
        let others = |kind: NameKind| {
            let names = owners.of_kind(kind).filter(|(_, owner)| *owner != host);
            names.map(|(name, owner)| (name, Covering { owner: owner.to_owned(), name: name.to_owned() }))
        };
        let templates = others(NameKind::Item(ListKind::ResourceTemplates));
        let namespaces = others(NameKind::Namespace);
        let mut resources = others(NameKind::Item(ListKind::Resources));
        Self {
            templates: templates.map(|(text, covering)| (forms(text), covering)).collect(),
            namespaces: namespaces.map(|(name, covering)| (methods_of(name).to_owned(), covering)).collect(),
            any_resource: resources.next().map(|(_, covering)| covering),
        }
    }

    /// The name of another host that covers or overlaps this one.
    pub fn find(&self, kind: NameKind, name: &str) -> Option<&Covering> {
        match kind {
            NameKind::Item(ListKind::Resources) => {
                let uris = [visible(name), visible(&normal_uri(name))];
                self.template(|template| uris.iter().any(|uri| template.matches(uri)))
            }
            NameKind::Item(ListKind::ResourceTemplates) => {
                let own = forms(&visible(name));
                let of_any_scheme = own.iter().any(UriTemplate::is_of_any_scheme);
                self.template(|template| own.iter().any(|own| own.overlaps(template)))
                    .or(self.any_resource.as_ref().filter(|_| of_any_scheme))
            }
            NameKind::Namespace => {
                let name = visible(name);
                let methods = methods_of(&name);
                let is_in = |inner: &str, outer: &str| {
                    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let mut namespaces = self.namespaces.iter();
                let nested = namespaces.find(|(other, _)| is_in(methods, other) || is_in(other, methods));
                nested.map(|(_, covering)| covering)
            }
            NameKind::Item(ListKind::Tools | ListKind::Prompts) => None,
        }
    }

    fn template(&self, fits: impl Fn(&UriTemplate) -> bool) -> Option<&Covering> {
        self.templates.iter().find(|(forms, _)| forms.iter().any(&fits)).map(|(_, covering)| covering)
    }
}

/// The template as it is, and in the normal form of URIs.
fn forms(text: &str) -> Vec<UriTemplate> {
    let template = UriTemplate::new(text);
    // The names of the variables are no part of the URI.
    let normal = UriTemplate::new(&normal_uri(&template.skeleton()));
    if normal == template { vec![template] } else { vec![template, normal] }
}

fn methods_of(namespace: &str) -> &str {
    namespace.strip_suffix(ALL_METHODS).unwrap_or(namespace)
}
