//! Secrets of a server: where its configuration takes them from, when they are fetched, and what must not be seen of them
//! by anybody but the server. They stay on the host's machine; [`Redactor`] keeps them out of everything that leaves.

mod exec;
mod fetch;
mod names;
mod redact_json;
mod redactor;
mod unescape;

pub use redactor::Redactor;

pub(crate) use exec::split_command;
pub(crate) use names::looks_secret;

use crate::config::{ServerConfig, TransportConfig};
use crate::error::ServerError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Where a value is fetched from when a connection is opened.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// `${file:PATH}`
    File(PathBuf),
    /// `${exec:CMD ARGS}`, as words; no shell reads them.
    Exec(Vec<String>),
}

/// What a server's configuration says about secrets.
#[derive(Clone)]
pub struct SecretSettings {
    /// How long a fetched value is good.
    pub ttl: Duration,
    /// Keys of `env`, and variables, whose values are secret although their names don't look like it.
    pub names: Vec<String>,
    /// Whether secrets are also taken out of what the server answers and reports.
    pub redact_results: bool,
    /// What the marks in the transport's texts stand for.
    pub(crate) sources: Vec<Source>,
    /// Values of variables that are secret by their names.
    pub(crate) marked: Vec<String>,
    pub(crate) vault: Vault,
}

/// Shared by all connections of one server.
#[derive(Clone, Default)]
pub(crate) struct Vault {
    fetched: Arc<Mutex<fetch::Fetched>>,
    redactor: Redactor,
}

/// A transport with its secrets in place.
pub(crate) struct Resolved {
    pub transport: TransportConfig,
    /// When something in it has to be fetched again; never, if nothing was fetched.
    pub until: Option<Instant>,
}

impl SecretSettings {
    pub const TTL: Duration = Duration::from_secs(300);

    /// Knows the server's secrets as far as they have been needed.
    pub fn redactor(&self) -> &Redactor {
        &self.vault.redactor
    }

    /// The text that stands for a value until it is fetched. No variable can hold such a text, and no process be given it.
    pub(crate) fn mark(index: usize) -> String {
        format!("\0{index}\0")
    }
}

/// Fetches what is not there or too old; with `anew`, everything.
pub(crate) async fn resolve(config: &ServerConfig, anew: bool) -> Result<Resolved, ServerError> {
    let settings = &config.secrets;
    let mut values = Vec::with_capacity(settings.sources.len());
    let mut until: Option<Instant> = None;
    let mut fetched = settings.vault.fetched.lock().await;
    for source in &settings.sources {
        let value = fetched.value(source, settings.ttl, anew).await.map_err(|reason| ServerError::Secret {
            server: config.name.clone(),
            source_of_it: source.to_string(),
            reason,
        })?;
        until = Some(until.map_or(value.until, |earlier| earlier.min(value.until)));
        values.push(value.text);
    }
    drop(fetched);
    let transport = with_values(&config.transport, &values);
    let secrets = names::secrets_of(&transport, settings, &values);
    settings.vault.redactor.learn(secrets);
    Ok(Resolved { transport, until })
}

fn with_values(transport: &TransportConfig, values: &[String]) -> TransportConfig {
    if values.is_empty() {
        return transport.clone();
    }
    let filled = |text: &String| {
        let marks = values.iter().enumerate();
        marks.fold(text.clone(), |text, (index, value)| text.replace(&SecretSettings::mark(index), value))
    };
    let filled_table = |table: &std::collections::BTreeMap<String, String>| {
        table.iter().map(|(name, value)| (name.clone(), filled(value))).collect()
    };
    match transport {
        TransportConfig::Stdio { command, args, env, cwd } => TransportConfig::Stdio {
            command: command.clone(),
            args: args.iter().map(filled).collect(),
            env: filled_table(env),
            cwd: cwd.clone(),
        },
        TransportConfig::Http { url, headers } => {
            TransportConfig::Http { url: filled(url), headers: filled_table(headers) }
        }
    }
}

impl Default for SecretSettings {
    fn default() -> Self {
        Self {
            ttl: Self::TTL,
            names: Vec::new(),
            redact_results: true,
            sources: Vec::new(),
            marked: Vec::new(),
            vault: Vault::default(),
        }
    }
}

/// What was fetched makes no difference between two configurations.
impl PartialEq for SecretSettings {
    fn eq(&self, other: &Self) -> bool {
        (self.ttl, &self.names, self.redact_results) == (other.ttl, &other.names, other.redact_results)
            && (&self.sources, &self.marked) == (&other.sources, &other.marked)
    }
}

impl fmt::Debug for SecretSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ttl, names, redact_results, sources, .. } = self;
        let mut debug = f.debug_struct("SecretSettings");
        debug.field("ttl", ttl).field("names", names).field("redact_results", redact_results);
        debug.field("sources", &sources.iter().map(ToString::to_string).collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

/// Of a command only its name: its arguments may be secret themselves.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "${{file:{}}}", path.display()),
            Self::Exec(words) => write!(f, "${{exec:{} …}}", words.first().map_or("", String::as_str)),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
