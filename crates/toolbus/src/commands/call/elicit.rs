//! Asks the person at the terminal for the input that a tool requests (elicitation), one line per field.

use crate::arguments;
use crate::failure::Failure;
use crate::output::print_error;
use crate::schema;
use crate::schema_text;
use crate::stop::StopSignals;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, stderr, stdin};
use toolbus_mcp::{Members, Outcome, Raw, raw};

/// How often one call may request input.
pub const MAX_ROUNDS: usize = 32;
/// How often one field is asked for.
const MAX_ATTEMPTS: usize = 5;

/// The capabilities of a client that can ask for input, if a person can answer.
pub fn capabilities() -> Raw {
    let can_ask = stdin().is_terminal() && stderr().is_terminal();
    if can_ask { raw(&json!({"elicitation": {"form": {}}})) } else { toolbus_mcp::empty_object() }
}

/// The requests of a result that needs input, and the state to be sent back with the answers.
pub struct InputRequired {
    requests: Vec<(String, Form)>,
    state: Option<Raw>,
}

struct Form {
    message: String,
    schema: Value,
    /// The fields in the order of the schema's text.
    fields: Vec<String>,
}

impl Form {
    fn of(params: &Raw) -> Option<Self> {
        let members = params.members().ok()?;
        let schema = members.get("requestedSchema");
        Some(Self {
            message: members.text("message").unwrap_or_else(|| "for input".to_owned()),
            schema: schema.and_then(|schema| serde_json::from_str(schema.get()).ok()).unwrap_or_default(),
            fields: schema.map(schema_text::property_names).unwrap_or_default(),
        })
    }
}

/// How the person answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Given(Value),
    /// End of input (Ctrl-D), or too many invalid answers.
    Declined,
    /// Ctrl-C.
    Interrupted,
}

impl InputRequired {
    /// `None` if the outcome is final, or requests anything else than a form.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let Outcome::Result(result) = outcome else { return None };
        let members = result.members().ok()?;
        if members.text("resultType").as_deref() != Some("input_required") {
            return None;
        }
        let requests = Members::of(members.get("inputRequests")).ok()?;
        let request = |(key, request): (&str, &Raw)| {
            let request = request.members().ok()?;
            let params =
                request.get("params").filter(|_| request.text("method").as_deref() == Some("elicitation/create"))?;
            let is_form = params.members().ok()?.text("mode").is_none_or(|mode| mode == "form");
            Some((key.to_owned(), Form::of(params).filter(|_| is_form)?))
        };
        let requests = requests.iter().map(request).collect::<Option<_>>()?;
        Some(Self { requests, state: members.get("requestState").cloned() })
    }

    /// Asks for everything and returns the params of the next round; `None` if the person interrupts.
    pub async fn ask(self, tool: &str, params: &Raw) -> Result<Option<Raw>, Failure> {
        let mut responses = Members::default();
        for (key, form) in self.requests {
            let response = match ask_form(tool, &form, next_line).await? {
                Answer::Given(content) => json!({"action": "accept", "content": content}),
                Answer::Declined => json!({"action": "decline"}),
                Answer::Interrupted => return Ok(None),
            };
            responses.set(key, raw(&response));
        }
        let mut params = params.members().map_err(|error| Failure::BadReply(error.to_string()))?.clone();
        params.set("inputResponses", responses.into_raw());
        match self.state {
            Some(state) => params.set("requestState", state),
            None => drop(params.remove("requestState")),
        }
        Ok(Some(params.into_raw()))
    }
}

/// One line of input.
pub enum Line {
    Text(String),
    End,
    Interrupted,
}

/// Asks for each field of the form.
async fn ask_form(tool: &str, form: &Form, read: impl AsyncFn() -> Result<Line, Failure>) -> Result<Answer, Failure> {
    let Form { message, schema, fields } = form;
    print_error(format_args!("{tool} asks: {message}"));
    if fields.is_empty() {
        print_error("Press Enter to accept; Ctrl-D declines.");
        return Ok(match read().await? {
            Line::Text(_) => Answer::Given(json!({})),
            Line::End => Answer::Declined,
            Line::Interrupted => Answer::Interrupted,
        });
    }
    print_error("Ctrl-D declines, Ctrl-C cancels the call.");
    let mut content = serde_json::Map::new();
    for name in fields {
        let is_required = schema_text::is_required(schema, name);
        let mut attempts = 0;
        loop {
            print_error(prompt(schema, name, is_required));
            let text = match read().await? {
                Line::Text(text) => text,
                Line::End => return Ok(Answer::Declined),
                Line::Interrupted => return Ok(Answer::Interrupted),
            };
            match value_of(name, text.trim(), schema, is_required) {
                Ok(Some(value)) => break drop(content.insert(name.to_owned(), value)),
                Ok(None) => break,
                Err(problem) => print_error(problem),
            }
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                return Ok(Answer::Declined);
            }
        }
    }
    Ok(Answer::Given(content.into()))
}

fn prompt(schema: &Value, name: &str, is_required: bool) -> String {
    let field = &schema["properties"][name];
    let mut notes = vec![schema_text::type_text(schema, field)];
    notes.extend(schema_text::notes(schema, field));
    if !is_required && field["default"].is_null() {
        notes.push("Enter to skip".to_owned());
    }
    let about = field["description"].as_str().or_else(|| field["title"].as_str());
    let about = about.map_or(String::new(), |about| format!(": {about}"));
    format!("{name}{about} ({})", notes.join("; "))
}

/// The typed value of a line, `None` for a field that is left out, or what is wrong with it.
fn value_of(name: &str, text: &str, schema: &Value, is_required: bool) -> Result<Option<Value>, String> {
    let field = &schema["properties"][name];
    if text.is_empty() && !field["default"].is_null() {
        return Ok(Some(field["default"].clone()));
    }
    if text.is_empty() {
        return if is_required { Err(format!("{name} is required")) } else { Ok(None) };
    }
    let typed = arguments::from_pairs("the form", &[format!("{name}={text}")], schema);
    let typed = typed.map_err(|error| error.to_string())?;
    let object: Value = serde_json::from_str(typed.get()).map_err(|error| error.to_string())?;
    // The other fields are still missing.
    let mut alone = schema.clone();
    alone["required"] = json!([]);
    match schema::problems(&alone, &object).first() {
        Some(problem) => Err(problem.clone()),
        None => Ok(Some(object[name].clone())),
    }
}

/// A line of standard input. The reading thread is left behind if the person interrupts.
async fn next_line() -> Result<Line, Failure> {
    let mut stop = StopSignals::listen()?;
    let reading = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        stdin().lock().read_line(&mut line).map(|count| (count > 0).then_some(line))
    });
    tokio::select! {
        line = reading => match line {
            Ok(Ok(Some(line))) => Ok(Line::Text(line)),
            Ok(Ok(None)) => Ok(Line::End),
            Ok(Err(error)) => Err(Failure::Stdin(error)),
            Err(_) => Ok(Line::End),
        },
        () = stop.next() => Ok(Line::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    async fn answer(form: Value, lines: &[&str]) -> Answer {
        let lines = RefCell::new(lines.iter());
        let read = async || Ok(lines.borrow_mut().next().map_or(Line::End, |line| Line::Text(format!("{line}\n"))));
        ask_form("book", &Form::of(&raw(&form)).expect("a form"), read).await.expect("answered")
    }

    #[tokio::test]
    async fn each_field_is_asked_for_until_it_is_valid() {
        let form = json!({"message": "Details?", "requestedSchema": {"type": "object", "required": ["name", "seats"],
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "seats": {"type": "integer", "minimum": 1},
            "size": {"type": "string", "enum": ["small", "large"], "default": "small"},
            "note": {"type": "string"},
        }}});
        let given = answer(form.clone(), &["", "Ada", "", "none", "0", "2", ""]).await;
        assert_eq!(given, Answer::Given(json!({"name": "Ada", "seats": 2, "size": "small"})));
        assert_eq!(answer(form.clone(), &["Ada"]).await, Answer::Declined);
        assert_eq!(answer(form, &["Ada", "", "x", "x", "x", "x", "x"]).await, Answer::Declined);
    }

    #[tokio::test]
    async fn a_form_without_fields_is_a_confirmation() {
        assert_eq!(answer(json!({"message": "Sure?"}), &[""]).await, Answer::Given(json!({})));
        assert_eq!(answer(json!({"message": "Sure?"}), &[]).await, Answer::Declined);
    }

    #[test]
    fn only_forms_are_asked_for() {
        let of = |requests: Value| {
            let result = raw(&json!({"resultType": "input_required", "inputRequests": requests, "requestState": "S"}));
            InputRequired::of(&Outcome::Result(result)).map(|input| input.requests.len())
        };
        assert_eq!(of(json!({"r1": {"method": "elicitation/create", "params": {"message": "Name?"}}})), Some(1));
        assert_eq!(of(json!({"r1": {"method": "roots/list"}})), None);
        assert_eq!(of(json!({"r1": {"method": "elicitation/create", "params": {"mode": "url"}}})), None);
        assert!(InputRequired::of(&Outcome::Result(raw(&json!({"content": []})))).is_none());
    }
}
