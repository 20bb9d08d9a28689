//! What is wrong in a configuration, where, and what to do about it.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("not readable as {format} ({position}): {reason}")]
    Syntax { format: &'static str, position: Position, reason: String },
    #[error("there is no \"mcpServers\" object in the file")]
    NoServers,
    #[error("server {server:?} is configured twice{}", at(position))]
    DuplicateServer { server: String, position: Option<Position> },
    #[error(
        "server {server:?}: the environment variable {variable}, which stands in {key}, is not set{}",
        at(position)
    )]
    MissingVariable { server: String, variable: String, key: String, position: Option<Position> },
    #[error("server {server:?}: `${{` without `}}` in {key}{}", at(position))]
    OpenVariable { server: String, key: String, position: Option<Position> },
    #[error("server {server:?}: a reference in {key} names no file or command{}", at(position))]
    BadSource { server: String, key: String, position: Option<Position> },
    #[error("server {server:?}: {key} can't be fetched from a file or a command{}", at(position))]
    SourceMisplaced { server: String, key: String, position: Option<Position> },
    #[error("server {server:?} has neither a command nor a url{}", at(position))]
    NoTransport { server: String, position: Option<Position> },
    #[error("server {server:?} has both a command and a url{}", at(position))]
    TwoTransports { server: String, position: Option<Position> },
    #[error("server {server:?}: unknown key {key:?}{}", at(position))]
    UnknownKey { server: String, key: String, position: Option<Position>, nearest: Option<&'static str> },
    #[error("server {server:?}: {key} has to be {expected}{}", at(position))]
    WrongType { server: String, key: String, expected: &'static str, position: Option<Position> },
    #[error("{server:?} is not usable as the name of a server: {reason}")]
    BadName { server: String, reason: &'static str },
}

/// Both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
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
    pub const CODE: &str = "TB0411";

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
            Self::SourceMisplaced { .. } => "${file:…} and ${exec:…} stand in env, headers, url and args".into(),
            Self::NoTransport { .. } => "add `command` for a stdio server, or `url` for an HTTP server".into(),
            Self::TwoTransports { .. } => "keep the one that you mean".into(),
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
