//! Resolves names to upstreams by the host manifests. If two upstreams have the same name, the first one owns it.

use super::Upstream;
use super::params::{self, ParamHeader};
use std::collections::HashMap;
use std::sync::Arc;
use toolbus_mcp::{ListKind, Members, NameKey, UriTemplate};

#[derive(Default)]
pub struct Routes {
    tools: HashMap<String, usize>,
    /// Tools that their host holds back. It answers their calls with the reason.
    withheld: HashMap<String, usize>,
    prompts: HashMap<String, usize>,
    resources: HashMap<String, usize>,
    template_texts: HashMap<String, usize>,
    /// Those that the operator gave to their hosts come first.
    templates: Vec<(UriTemplate, usize)>,
    schemes: HashMap<String, usize>,
    param_headers: HashMap<String, Vec<ParamHeader>>,
}

impl Routes {
    pub fn new(upstreams: &[Arc<Upstream>]) -> Self {
        let mut routes = Self::default();
        for upstream in upstreams {
            for name in &upstream.manifest().withheld {
                routes.withheld.entry(name.clone()).or_insert(upstream.index);
            }
            for kind in ListKind::ALL {
                for item in upstream.manifest().items(kind) {
                    let key = Members::parse(item.text()).ok().and_then(|item| item.text(kind.key()));
                    key.into_iter().for_each(|key| routes.add(kind, key, item.get(), upstream.index));
                }
            }
        }
        routes.templates.sort_by_key(|(_, index)| !upstreams[*index].is_granted());
        routes
    }

    fn add(&mut self, kind: ListKind, key: String, item: &str, index: usize) {
        if matches!(kind, ListKind::Resources | ListKind::ResourceTemplates)
            && let Some(scheme) = scheme(&key)
        {
            self.schemes.entry(scheme).or_insert(index);
        }
        if kind == ListKind::ResourceTemplates {
            self.templates.push((UriTemplate::new(&key), index));
        }
        if kind == ListKind::Tools && !self.tools.contains_key(&key) && item.contains(params::ANNOTATION) {
            let headers = params::of_tool(item);
            self.param_headers.insert(key.clone(), headers);
        }
        self.list_mut(kind).entry(key).or_insert(index);
    }

    pub fn owner(&self, name: &NameKey) -> Option<usize> {
        match name {
            NameKey::Tool(name) => self.tools.get(name).or_else(|| self.withheld.get(name)).copied(),
            NameKey::Prompt(name) => self.prompts.get(name).copied(),
            NameKey::Uri(uri) => self.owner_of_uri(uri),
            NameKey::Task(_) => None,
        }
    }

    pub fn owner_of_item(&self, kind: ListKind, key: &str) -> Option<usize> {
        self.list(kind).get(key).copied()
    }

    pub fn param_headers(&self, tool: &str) -> Option<&[ParamHeader]> {
        self.param_headers.get(tool).map(Vec::as_slice)
    }

    /// Looks for a listed URI, then for a matching template. A completion passes the template itself.
    fn owner_of_uri(&self, uri: &str) -> Option<usize> {
        let by_template = || self.templates.iter().find(|(template, _)| template.matches(uri)).map(|(_, index)| *index);
        let listed = self.resources.get(uri).or_else(|| self.template_texts.get(uri)).copied();
        listed.or_else(by_template)
    }

    /// The first upstream with URIs of that scheme.
    pub fn owner_of_scheme(&self, uri: &str) -> Option<usize> {
        self.schemes.get(&scheme(uri)?).copied()
    }

    fn list(&self, kind: ListKind) -> &HashMap<String, usize> {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.template_texts,
        }
    }

    fn list_mut(&mut self, kind: ListKind) -> &mut HashMap<String, usize> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.template_texts,
        }
    }
}

/// The scheme of the URI, in lower case, because schemes are case-insensitive.
pub fn scheme(uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    (!scheme.is_empty() && !scheme.contains(['/', '{'])).then(|| scheme.to_ascii_lowercase())
}
