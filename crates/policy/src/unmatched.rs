//! Warnings about patterns that match no known name, with suggestions.

use crate::index::Index;
use crate::pattern::Pattern;
use crate::set::PolicySet;
use toolbus_base::{MIN_SIMILARITY, nearest, similarity};
use toolbus_config::{Position, Warning};

impl PolicySet {
    /// Checks every pattern against the `(server, name)` pairs of all known items. Patterns for URIs are skipped,
    /// because resources can be read without being listed.
    pub fn unmatched<'a>(&self, names: &[(&'a str, &'a str)]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for role in self.roles.iter().flatten().map(|(_, role)| role) {
            let patterns: Vec<_> = role.rules.iter().map(|rule| (&rule.pattern, rule.position)).collect();
            warnings.extend(unmatched(&role.index, &patterns, names));
        }
        let limits = self.limits.iter().filter_map(|limit| match &limit.kind {
            crate::LimitKind::Pattern(pattern) => Some((Pattern::parse(pattern).ok()?, limit.position)),
            crate::LimitKind::Role(_) => None,
        });
        let limits: Vec<_> = limits.collect();
        let patterns: Vec<_> = limits.iter().map(|(pattern, position)| (pattern, *position)).collect();
        warnings.extend(unmatched(&self.limit_index, &patterns, names));
        warnings.sort_by(|a, b| (a.position, &a.text).cmp(&(b.position, &b.text)));
        warnings
    }
}

fn unmatched(index: &Index, patterns: &[(&Pattern, Position)], names: &[(&str, &str)]) -> Vec<Warning> {
    let mut matched = vec![false; patterns.len()];
    for (server, name) in names {
        index.matching(server, name).into_iter().for_each(|id| matched[id] = true);
    }
    let is_unmatched =
        |(pattern, matched): (&Pattern, bool)| !matched && !pattern.matches_any_name() && !pattern.matches_uris();
    let idle = patterns.iter().zip(matched).filter(|((pattern, _), matched)| is_unmatched((pattern, *matched)));
    idle.map(|((pattern, position), _)| {
        let suggestion =
            suggestion(pattern, names).map(|suggestion| format!("; did you mean {suggestion}?")).unwrap_or_default();
        Warning { position: *position, text: format!("{:?} matches no known name{suggestion}", pattern.text) }
    })
    .collect()
}

fn suggestion(pattern: &Pattern, names: &[(&str, &str)]) -> Option<String> {
    let Some(server) = &pattern.server else { return similar_name(pattern.name.glob(), names.iter().map(|(_, n)| *n)) };
    let of_server = |wanted: &str| {
        let glob = server.compile_matcher();
        let names = names.iter().filter(move |(server, _)| glob.is_match(server)).map(|(_, name)| *name);
        similar_name(wanted, names)
    };
    let is_there = names.iter().any(|(known, _)| server.compile_matcher().is_match(known));
    let name = pattern.name.glob();
    if is_there {
        return of_server(name).map(|name| format!("{}/{name}", server.glob()));
    }
    let servers = nearest(server.glob(), names.iter().map(|(server, _)| *server));
    servers.first().map(|server| format!("{server}/{name}"))
}

/// Compares only the part of the pattern before its first wildcard.
fn similar_name<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let stem = &pattern[..pattern.find(['*', '?', '[', '{']).unwrap_or(pattern.len())];
    if stem.is_empty() {
        return None;
    }
    let is_stem = stem.len() < pattern.len();
    let mut best: Option<(f64, &str)> = None;
    for name in names {
        let beginning: String = name.chars().take(stem.chars().count()).collect();
        let score = if is_stem { similarity(stem, &beginning) } else { similarity(stem, name) };
        let better = best.is_none_or(|(known, other)| score > known || (score == known && name < other));
        if score >= MIN_SIMILARITY && better {
            best = Some((score, name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}
