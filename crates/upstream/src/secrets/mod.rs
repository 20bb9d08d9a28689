//! The secrets of a server: their sources, when they are fetched, and their redaction. They stay on the host's machine;
//! [`Redactor`] removes them from everything that leaves it.

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

/// The source of a value that is fetched when a connection is opened.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// `${file:PATH}`
    File(PathBuf),
    /// `${exec:CMD ARGS}`, split into words. It runs without a shell.
    Exec(Vec<String>),
}

/// The secret-related settings of a server.
#[derive(Clone)]
pub struct SecretSettings {
    /// How long a fetched value is cached.
    pub ttl: Duration,
    /// Keys of `env`, and variables, whose values are secret although their names don't suggest it.
    pub names: Vec<String>,
    /// Whether secrets are also redacted in results and notifications, not only in errors.
    pub redact_results: bool,
    /// The sources that the placeholders in the transport refer to, by index.
    pub(crate) sources: Vec<Source>,
    /// Values of variables that are secret by their names.
    pub(crate) secret_variables: Vec<String>,
    pub(crate) vault: Vault,
}

/// Cache and redactor, shared by all connections of one server.
#[derive(Clone, Default)]
pub(crate) struct Vault {
    fetched: Arc<Mutex<fetch::Fetched>>,
    redactor: Redactor,
}

/// A transport with its secrets filled in.
pub(crate) struct Resolved {
    pub transport: TransportConfig,
    /// When the first fetched value expires; `None` if nothing was fetched.
    pub expires: Option<Instant>,
}

impl SecretSettings {
    /// Default of `ttl`.
    pub const TTL: Duration = Duration::from_secs(300);

    /// The redactor for the server's secrets. It knows those that have been fetched or used so far.
    pub fn redactor(&self) -> &Redactor {
        &self.vault.redactor
    }

    /// The placeholder for a value until it is fetched. Environment variables and process arguments can't contain NUL,
    /// so it can't collide with a real value.
    pub(crate) fn placeholder(index: usize) -> String {
        format!("\0{index}\0")
    }
}

/// Fetches values that are missing or expired; with `force`, all of them.
pub(crate) async fn resolve(config: &ServerConfig, force: bool) -> Result<Resolved, ServerError> {
    let settings = &config.secrets;
    let mut values = Vec::with_capacity(settings.sources.len());
    let mut expires: Option<Instant> = None;
    let mut fetched = settings.vault.fetched.lock().await;
    for source in &settings.sources {
        let value = fetched.value(source, settings.ttl, force).await.map_err(|reason| ServerError::Secret {
            server: config.name.clone(),
            source_of_it: source.to_string(),
            reason,
        })?;
        expires = Some(expires.map_or(value.expires, |earlier| earlier.min(value.expires)));
        values.push(value.text);
    }
    drop(fetched);
    let transport = filled_transport(&config.transport, &values);
    let secrets = names::secrets_of(&transport, settings, &values);
    settings.vault.redactor.learn(secrets);
    Ok(Resolved { transport, expires })
}

fn filled_transport(transport: &TransportConfig, values: &[String]) -> TransportConfig {
    if values.is_empty() {
        return transport.clone();
    }
    let fill = |text: &String| {
        let placeholders = values.iter().enumerate();
        placeholders.fold(text.clone(), |text, (index, value)| text.replace(&SecretSettings::placeholder(index), value))
    };
    let fill_table = |table: &std::collections::BTreeMap<String, String>| {
        table.iter().map(|(name, value)| (name.clone(), fill(value))).collect()
    };
    match transport {
        TransportConfig::Stdio { command, args, env, cwd } => TransportConfig::Stdio {
            command: command.clone(),
            args: args.iter().map(fill).collect(),
            env: fill_table(env),
            cwd: cwd.clone(),
        },
        TransportConfig::Http { url, headers } => {
            TransportConfig::Http { url: fill(url), headers: fill_table(headers) }
        }
        TransportConfig::Sse { url, headers } => TransportConfig::Sse { url: fill(url), headers: fill_table(headers) },
        TransportConfig::InProcess(server) => TransportConfig::InProcess(Arc::clone(server)),
    }
}

impl Default for SecretSettings {
    fn default() -> Self {
        Self {
            ttl: Self::TTL,
            names: Vec::new(),
            redact_results: true,
            sources: Vec::new(),
            secret_variables: Vec::new(),
            vault: Vault::default(),
        }
    }
}

/// Fetched values don't count for equality.
impl PartialEq for SecretSettings {
    fn eq(&self, other: &Self) -> bool {
        (self.ttl, &self.names, self.redact_results) == (other.ttl, &other.names, other.redact_results)
            && (&self.sources, &self.secret_variables) == (&other.sources, &other.secret_variables)
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

/// Shows only the name of a command, because its arguments may be secret.
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
