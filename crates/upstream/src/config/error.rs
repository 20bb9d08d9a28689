//! Errors in a configuration, with their positions and hints.

/// An error in the configuration of servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is not valid JSON or TOML.
    #[error("invalid {format} ({position}): {reason}")]
    Syntax {
        /// `JSON` or `TOML`.
        format: &'static str,
        /// Where the error is.
        position: Position,
        /// Description by the parser.
        reason: String,
    },
    /// The JSON file has no `mcpServers`.
    #[error("there is no \"mcpServers\" object in the file")]
    NoServers,
    /// Two servers have the same name.
    #[error("server {server:?} is configured twice{}", at(position))]
    DuplicateServer {
        /// Name of the server.
        server: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// A referenced environment variable is not set.
    #[error("server {server:?}: the environment variable {variable}, used in {key}, is not set{}", at(position))]
    MissingVariable {
        /// Name of the server.
        server: String,
        /// Name of the variable.
        variable: String,
        /// The setting that refers to it.
        key: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// A `${` without a closing brace.
    #[error("server {server:?}: `${{` without `}}` in {key}{}", at(position))]
    OpenVariable {
        /// Name of the server.
        server: String,
        /// The setting with the reference.
        key: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// An invalid `${file:…}` or `${exec:…}`.
    #[error("server {server:?}: a reference in {key} names no file or command{}", at(position))]
    BadSource {
        /// Name of the server.
        server: String,
        /// The setting with the reference.
        key: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// A `${file:…}` or `${exec:…}` in a setting that doesn't support it.
    #[error("server {server:?}: {key} can't be fetched from a file or a command{}", at(position))]
    SourceMisplaced {
        /// Name of the server.
        server: String,
        /// The setting with the reference.
        key: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// Neither `command` nor `url` is set.
    #[error("server {server:?} has neither a command nor a url{}", at(position))]
    NoTransport {
        /// Name of the server.
        server: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// Both `command` and `url` are set.
    #[error("server {server:?} has both a command and a url{}", at(position))]
    TwoTransports {
        /// Name of the server.
        server: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// A key that no setting has.
    #[error("server {server:?}: unknown key {key:?}{}", at(position))]
    UnknownKey {
        /// Name of the server.
        server: String,
        /// The unknown key.
        key: String,
        /// Where it is in the file, if known.
        position: Option<Position>,
        /// The key that was probably intended.
        nearest: Option<&'static str>,
    },
    /// A value has the wrong type or is out of range.
    #[error("server {server:?}: {key} has to be {expected}{}", at(position))]
    WrongType {
        /// Name of the server.
        server: String,
        /// The setting.
        key: String,
        /// Description of valid values.
        expected: &'static str,
        /// Where it is in the file, if known.
        position: Option<Position>,
    },
    /// The name of a server is not valid.
    #[error("invalid server name {server:?}: {reason}")]
    BadName {
        /// Name of the server.
        server: String,
        /// Why it is not valid.
        reason: &'static str,
    },
}

/// A position in a file. Lines and columns are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line number.
    pub line: usize,
    /// Column number, in characters.
    pub column: usize,
}

impl Position {
    pub(crate) fn of_offset(text: &str, offset: usize) -> Self {
        let mut before = text.get(..offset).unwrap_or(text).rsplit('\n');
        let column = before.next().unwrap_or_default().chars().count() + 1;
        Self { line: before.count() + 1, column }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl ConfigError {
    /// The stable error code.
    pub const CODE: &str = "TB0411";

    /// How to correct it, for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Syntax { .. } => "correct the file at that place".into(),
            Self::NoServers => "the file has the form {\"mcpServers\": {\"NAME\": {\"command\": …}}}".into(),
            Self::DuplicateServer { .. } => "give one of them another name".into(),
            Self::MissingVariable { variable, .. } => {
                format!("set {variable} before you start the host, or write ${{{variable}:-default}}")
            }
            Self::OpenVariable { .. } => "variables are written ${NAME}".into(),
            Self::BadSource { .. } => "write ${file:PATH} or ${exec:COMMAND ARGUMENTS}, with quotes in pairs".into(),
            Self::SourceMisplaced { .. } => "${file:…} and ${exec:…} are allowed in env, headers, url and args".into(),
            Self::NoTransport { .. } => "add `command` for a stdio server, or `url` for an HTTP server".into(),
            Self::TwoTransports { .. } => "remove one of them".into(),
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::UnknownKey { .. } => format!("known keys: {}", super::settings::KEYS.join(", ")),
            Self::WrongType { .. } => "correct the value".into(),
            Self::BadName { .. } => "use letters, digits, `-`, `_` and `.`, at most 64 of them".into(),
        }
    }
}

fn at(position: &Option<Position>) -> String {
    position.map(|position| format!(" ({position})")).unwrap_or_default()
}
