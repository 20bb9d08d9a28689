//! The variables in a client's file: those of the environment in the client's own notation, folders, inputs that are asked
//! for, and files of variables.

use super::dialect::Client;
use crate::config::expand::{Environment, References, expand};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use toolbus_config::{ConfigError, Setting, Table, Value};

/// What a client's file may refer to.
pub struct Surroundings<'a> {
    /// The path of the file.
    pub file: &'a Path,
    /// Looks up environment variables.
    pub env: Environment<'a>,
    /// Reads a file of variables (`envFile`).
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
    /// Asks the user for an input. `None` if there is no user to ask.
    pub ask: &'a dyn Fn(&Input) -> Option<String>,
}

/// A value that the file leaves to the user: `${input:ID}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Its name in references.
    pub id: String,
    /// Description for the user.
    pub description: String,
    /// Whether it must not be shown while it is typed.
    pub password: bool,
    /// The value if the user gives none.
    pub default: Option<String>,
}

impl Input {
    /// The environment variable that answers the input where no user can be asked.
    pub fn variable(id: &str) -> String {
        let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        format!("INPUT_{}", id.chars().map(word).collect::<String>())
    }
}

/// Folders that clients keep the files of a project in.
const CLIENT_FOLDERS: &[&str] =
    &[".vscode", ".cursor", ".roo", ".gemini", ".claude", ".zed", ".continue", ".codex", ".opencode", ".windsurf"];

pub(super) struct Variables<'a> {
    around: &'a Surroundings<'a>,
    client: Client,
    inputs: Vec<Input>,
    answers: RefCell<BTreeMap<String, Option<String>>>,
}

impl<'a> Variables<'a> {
    pub fn new(around: &'a Surroundings<'a>, client: Client, root: &Table) -> Self {
        let list = match root.get("inputs").map(|inputs| &inputs.value) {
            Some(Value::List(list)) => list.as_slice(),
            _ => &[],
        };
        let inputs = list.iter().filter_map(read_input).collect();
        Self { around, client, inputs, answers: RefCell::default() }
    }

    /// The value of a variable, under the name that stands in the reference.
    pub fn lookup(&self, name: &str) -> Option<String> {
        let folder = || self.workspace();
        match name {
            "workspaceFolder" | "workspaceRoot" => Some(folder().to_string_lossy().into_owned()),
            "workspaceFolderBasename" => Some(folder().file_name()?.to_string_lossy().into_owned()),
            "userHome" => (self.around.env)("HOME"),
            "pathSeparator" | "/" => Some("/".to_owned()),
            _ => match name.strip_prefix("input:") {
                Some(id) => self.answers.borrow_mut().entry(id.to_owned()).or_insert_with(|| self.input(id)).clone(),
                None => (self.around.env)(name),
            },
        }
    }

    fn input(&self, id: &str) -> Option<String> {
        let from_env = (self.around.env)(&Input::variable(id)).or_else(|| (self.around.env)(id));
        let unknown = || Input { id: id.to_owned(), ..Input::default() };
        from_env.or_else(|| {
            let input = self.inputs.iter().find(|input| input.id == id).cloned().unwrap_or_else(unknown);
            (self.around.ask)(&input).or(input.default)
        })
    }

    /// The names under which inputs are secret.
    pub fn secret_inputs(&self) -> impl Iterator<Item = String> {
        self.inputs.iter().filter(|input| input.password).map(|input| format!("input:{}", input.id))
    }

    /// The value of an environment variable that a setting names. `None` for a disabled server, which needs none.
    pub fn named(&self, setting: &Setting, disabled: bool) -> Result<Option<String>, ConfigError> {
        let name = setting.text()?;
        match (self.around.env)(name) {
            None if !disabled => Err(setting.invalid(
                format!("the environment variable {name} is not set"),
                format!("set {name} before you start the host"),
            )),
            value => Ok(value),
        }
    }

    /// The variables of a file, which is found from the folder of the project.
    pub fn of_file(&self, setting: &Setting) -> Result<Vec<(String, String)>, ConfigError> {
        let path = match expand(setting.text()?, &|name| self.lookup(name), &mut References::default()) {
            Ok(path) if !path.contains('\0') => path,
            _ => return Err(setting.invalid("the path has a reference without a value", "write the path itself")),
        };
        // The error shows the path without the values of variables.
        let shown = setting.as_text().unwrap_or_default();
        let text = (self.around.read)(&self.resolved(&self.workspace(), &path)).map_err(|error| {
            setting.invalid(format!("{shown} can't be read: {error}"), "create the file, or remove the setting")
        })?;
        Ok(text.lines().filter_map(variable_of_line).collect())
    }

    /// The text with its references in the notation of toolbus.
    pub fn in_our_notation(&self, text: &str) -> String {
        match self.client {
            Client::Gemini => with_braces(text),
            Client::OpenCode => replaced(text, "{", "}", |inner| match inner.split_once(':')? {
                ("env", name) => Some(format!("${{{name}}}")),
                ("file", path) => {
                    let path = self.resolved(&self.folder(), path);
                    Some(format!("${{file:{}}}", path.display()))
                }
                _ => None,
            }),
            Client::Continue => replaced(text, "${{", "}}", |inner| {
                let (kind, name) = inner.trim().split_once('.')?;
                matches!(kind, "secrets" | "inputs" | "env").then(|| format!("${{{name}}}"))
            }),
            _ => text.to_owned(),
        }
    }

    fn resolved(&self, folder: &Path, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), (self.around.env)("HOME")) {
            (Some(rest), Some(home)) => Path::new(&home).join(rest),
            _ => folder.join(path),
        }
    }

    fn folder(&self) -> PathBuf {
        let file = std::path::absolute(self.around.file).unwrap_or_else(|_| self.around.file.to_owned());
        file.parent().unwrap_or(Path::new("/")).to_owned()
    }

    /// The folder of the project that the file belongs to.
    fn workspace(&self) -> PathBuf {
        let folder = self.folder();
        let is_clients = folder.file_name().is_some_and(|name| CLIENT_FOLDERS.iter().any(|known| name == *known));
        if is_clients { folder.parent().unwrap_or(&folder).to_owned() } else { folder }
    }
}

fn read_input(setting: &Setting) -> Option<Input> {
    let Value::Table(table) = &setting.value else { return None };
    let text = |key| table.get(key).and_then(Setting::as_text).map(str::to_owned);
    let password = table.get("password").is_some_and(|flag| flag.flag() == Ok(true));
    Some(Input {
        id: text("id")?,
        description: text("description").unwrap_or_default(),
        password,
        default: text("default"),
    })
}

/// `NAME=value`, with `export`, quotes and comments as in a shell, but without expansion.
fn variable_of_line(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    for quote in ['"', '\''] {
        if let Some((inner, _)) = value.strip_prefix(quote).and_then(|rest| rest.rsplit_once(quote)) {
            let unescaped = || inner.replace("\\n", "\n").replace("\\\"", "\"");
            return Some((name.to_owned(), if quote == '"' { unescaped() } else { inner.to_owned() }));
        }
    }
    let value = value.split_once(" #").map_or(value, |(value, _)| value.trim_end());
    Some((name.to_owned(), value.to_owned()))
}

/// Replaces what stands between `open` and `close`, unless the replacement is `None`.
fn replaced(text: &str, open: &str, close: &str, replace: impl Fn(&str) -> Option<String>) -> String {
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(open) {
        let inner = &rest[at + open.len()..];
        let replacement = inner.find(close).and_then(|end| Some((end, replace(&inner[..end])?)));
        done.push_str(&rest[..at]);
        rest = match replacement {
            Some((end, replacement)) => {
                done.push_str(&replacement);
                &inner[end + close.len()..]
            }
            None => {
                done.push_str(open);
                inner
            }
        };
    }
    done + rest
}

/// Writes `$NAME` as `${NAME}`.
fn with_braces(text: &str) -> String {
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('$') {
        let inner = &rest[at + 1..];
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
        done.push_str(&rest[..at]);
        if inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            done.push_str(&format!("${{{}}}", &inner[..end]));
            rest = &inner[end..];
        } else {
            done.push('$');
            rest = inner;
        }
    }
    done + rest
}
