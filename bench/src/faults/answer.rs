//! The answer that a caller got, classified by what it says about the effect.

use serde_json::Value;

/// Codes of errors that report an unknown outcome.
const UNKNOWN: [&str; 2] = ["TB0420", "TB0408"];
/// Codes of errors that end a call without saying whether the tool ran.
const MAY_HAVE_RUN: [&str; 5] = ["TB0204", "TB0214", "TB0407", "TB0421", "TB0426"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Result,
    /// The answer to another call, or an invalid one.
    Wrong,
    Unknown,
    Error,
    /// An error after which the tool may have run.
    AmbiguousError,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// The code of an error, or its message if it has none.
    pub code: Option<String>,
    /// Whether the call was joined to an earlier one.
    pub joined: bool,
}

impl Answer {
    /// Whether the worker had no broker to forward the call to.
    pub fn is_not_forwarded(&self) -> bool {
        self.code.as_deref() == Some("TB0401")
    }

    pub fn read(message: &Value, id: &str) -> Self {
        if let Some(error) = message.get("error") {
            let code = error["data"]["code"].as_str().or(error["message"].as_str()).unwrap_or("error").to_owned();
            let outcome = match code.as_str() {
                code if UNKNOWN.contains(&code) => Outcome::Unknown,
                code if MAY_HAVE_RUN.contains(&code) => Outcome::AmbiguousError,
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
    fn answers_are_classified_by_content_and_error_code() {
        let check = |message: Value, expected| assert_eq!(Answer::read(&message, "a").outcome, expected, "{message}");
        check(json!({"result": {"content": [{"type": "text", "text": "a"}]}}), Outcome::Result);
        check(json!({"result": {"content": [{"type": "text", "text": "b"}]}}), Outcome::Wrong);
        check(json!({"result": {"content": [{"type": "text", "text": "no"}], "isError": true}}), Outcome::Error);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0420"}}}), Outcome::Unknown);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0402"}}}), Outcome::Error);
        check(json!({"error": {"code": -32050, "message": "", "data": {"code": "TB0407"}}}), Outcome::AmbiguousError);
    }
}
