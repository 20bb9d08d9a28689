//! Finds the patterns that match a name, with one pass per glob set instead of one per pattern.

use crate::pattern::Pattern;
use globset::{Candidate, Glob, GlobSet, GlobSetBuilder};
use std::collections::HashMap;

/// Patterns, identified by the order in which they were given.
#[derive(Debug, Clone, Default)]
pub struct Index {
    of_every_server: Bucket,
    /// The distinct server patterns; `of_servers` has the name patterns for each, at the same index.
    servers: GlobSet,
    of_servers: Vec<Bucket>,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    names: GlobSet,
    ids: Vec<usize>,
}

impl Index {
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a Pattern>) -> Result<Self, globset::Error> {
        let mut of_every_server = (GlobSetBuilder::new(), Vec::new());
        let mut servers = GlobSetBuilder::new();
        let mut buckets: HashMap<&str, usize> = HashMap::new();
        let mut of_servers: Vec<(GlobSetBuilder, Vec<usize>)> = Vec::new();
        for (id, pattern) in patterns.into_iter().enumerate() {
            let (names, ids) = match &pattern.server {
                None => &mut of_every_server,
                Some(server) => {
                    let index = *buckets.entry(server.glob()).or_insert_with(|| {
                        servers.add(server.clone());
                        of_servers.push((GlobSetBuilder::new(), Vec::new()));
                        of_servers.len() - 1
                    });
                    &mut of_servers[index]
                }
            };
            names.add(pattern.name.clone());
            ids.push(id);
        }
        let bucket = |(names, ids): (GlobSetBuilder, Vec<usize>)| Ok(Bucket { names: names.build()?, ids });
        Ok(Self {
            of_every_server: bucket(of_every_server)?,
            servers: servers.build()?,
            of_servers: of_servers.into_iter().map(bucket).collect::<Result<_, globset::Error>>()?,
        })
    }

    /// Ids of the matching patterns, in no particular order.
    pub fn matching(&self, server: &str, name: &str) -> Vec<usize> {
        let name = Candidate::new(name);
        let mut found = self.of_every_server.names.matches_candidate(&name);
        found.iter_mut().for_each(|id| *id = self.of_every_server.ids[*id]);
        if !self.of_servers.is_empty() {
            for index in self.servers.matches(server) {
                let bucket = &self.of_servers[index];
                found.extend(bucket.names.matches_candidate(&name).into_iter().map(|id| bucket.ids[id]));
            }
        }
        found
    }
}

/// A set of servers, given by patterns.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    every: bool,
    some: GlobSet,
}

impl Servers {
    /// `None` stands for every server.
    pub fn new<'a>(patterns: impl IntoIterator<Item = Option<&'a Glob>>) -> Result<Self, globset::Error> {
        let (mut every, mut some) = (false, GlobSetBuilder::new());
        for pattern in patterns {
            match pattern {
                None => every = true,
                Some(glob) => drop(some.add(glob.clone())),
            }
        }
        Ok(Self { every, some: some.build()? })
    }

    pub fn contain(&self, server: &str) -> bool {
        self.every || self.some.is_match(server)
    }
}
