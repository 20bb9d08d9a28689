//! What a caller was told.

use serde_json::Value;

/// Codes of errors that say themselves that the tool may have run: its server died, it was cut short, or nobody knows.
const UNKNOWN: [&str; 2] = ["TB0420", "TB0408"];
const MAY_HAVE_RUN: [&str; 5] = ["TB0204", "TB0214", "TB0407", "TB0421", "TB0426"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Result,
    /// The answer of another call, or nonsense.
    Wrong,
    Unknown,
    Error,
    /// An error that leaves open whether the tool ran.
    OpenError,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// The stable code of an error, or its words where it has none.
    pub code: Option<String>,
    /// Whether it is the answer of an earlier call that this one was joined to.
    pub joined: bool,
}

impl Answer {
    pub fn read(message: &Value, id: &str) -> Self {
        if let Some(error) = message.get("error") {
            let code = error["data"]["code"].as_str().or(error["message"].as_str()).unwrap_or("error").to_owned();
            let outcome = match code.as_str() {
                code if UNKNOWN.contains(&code) => Outcome::Unknown,
                code if MAY_HAVE_RUN.contains(&code) => Outcome::OpenError,
                _ => Outcome::Error,
            };
            return Self { outcome, code: Some(code), joined: error["data"].get("joined").is_some() };
        }
        let result = &message["result"];
        let joined = result["_meta"].get("toolbus/joined").is_some();
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        match (result["isError"] == true, text == id) {
            (true, _) => Self { outcome: Outcome::Error, code: Some(text.to_owned()), joined },
            (false, true) => Self { outcome: Outcome::Result, code: None, joined },
            (false, false) => Self { outcome: Outcome::Wrong, code: Some(message.to_string()), joined },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_what_the_client_can_tell_from_it() {
        let check = |message: Value, expected| assert_eq!(Answer::read(&message, "a").outcome, expected, "{message}");
        check(json!({"result": {"content": [{"type": "text", "text": "a"}]}}), Outcome::Result);
        check(json!({"result": {"content": [{"type": "text", "text": "b"}]}}), Outcome::Wrong);
        check(json!({"result": {"content": [{"type": "text", "text": "no"}], "isError": true}}), Outcome::Error);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0420"}}}), Outcome::Unknown);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0402"}}}), Outcome::Error);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0407"}}}), Outcome::OpenError);
    }
}
