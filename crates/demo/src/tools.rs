//! The tools.

use crate::chart;
use crate::server::send;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Zoned;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_mcp::{Members, Notification, Raw, RpcError, meta, raw};

/// As the client gets them. Their schemas say what the types below accept.
const DEFINITIONS: &str = include_str!("tools.json");

#[derive(Deserialize)]
struct TextArgs {
    text: String,
}

#[derive(Deserialize)]
struct NowArgs {
    zone: Option<String>,
}

#[derive(Deserialize)]
struct CountdownArgs {
    #[serde(default = "default_ten")]
    from: u32,
    #[serde(default = "default_interval_ms")]
    interval_ms: u64,
}

#[derive(Deserialize)]
struct ChartArgs {
    values: Vec<f64>,
    colour: Option<String>,
}

#[derive(Deserialize)]
struct SlowArgs {
    #[serde(default = "default_ten")]
    seconds: u32,
}

fn default_ten() -> u32 {
    10
}

fn default_interval_ms() -> u64 {
    200
}

/// The list of tools.
pub fn definitions() -> Value {
    serde_json::from_str(DEFINITIONS).expect("the definitions are JSON")
}

/// Runs a tool. It is cancelled by dropping the future.
pub async fn call(params: Option<&Raw>) -> Result<Value, RpcError> {
    let members = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
    let arguments = members.get("arguments").map_or("{}", Raw::get);
    let progress = Progress { token: meta::get(params, meta::PROGRESS_TOKEN) };
    let name = members.text("name").unwrap_or_default();
    let result = match name.as_str() {
        "text_stats" => parse(arguments).map(text_stats),
        "now" => parse(arguments).and_then(now),
        "countdown" => match parse(arguments) {
            Ok(args) => Ok(countdown(args, &progress).await),
            Err(problem) => Err(problem),
        },
        "chart" => parse(arguments).and_then(chart),
        "slow" => match parse(arguments) {
            Ok(args) => Ok(slow(args, &progress).await),
            Err(problem) => Err(problem),
        },
        _ => return Err(RpcError::invalid_params(format!("there is no tool {name:?}"))),
    };
    Ok(result.unwrap_or_else(|problem| json!({"content": [text(problem)], "isError": true})))
}

fn parse<T: DeserializeOwned>(arguments: &str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|error| format!("invalid arguments: {error}"))
}

fn text_stats(TextArgs { text: given }: TextArgs) -> Value {
    let words: Vec<&str> = given.split_whitespace().collect();
    let stats = json!({
        "characters": given.chars().count(),
        "words": words.len(),
        "lines": given.lines().count(),
        "longest_word": words.iter().copied().max_by_key(|word| word.chars().count()),
    });
    json!({"content": [text(stats.to_string())], "structuredContent": stats, "isError": false})
}

fn now(NowArgs { zone }: NowArgs) -> Result<Value, String> {
    let name = zone.as_deref().unwrap_or("UTC");
    let unknown = |_| format!("There is no time zone {name:?}. Names look like Europe/Berlin or Asia/Tokyo.");
    let now = Zoned::now().with_time_zone(TimeZone::get(name).map_err(unknown)?);
    Ok(success(now.strftime("%A, %-d %B %Y, %H:%M:%S %Z (UTC%:z)").to_string()))
}

async fn countdown(CountdownArgs { from, interval_ms }: CountdownArgs, progress: &Progress) -> Value {
    let steps = from.min(1000);
    for step in 0..steps {
        tokio::time::sleep(Duration::from_millis(interval_ms.min(10_000))).await;
        progress.report(step + 1, steps, format!("{} to go", steps - step - 1));
    }
    success(format!("Counted from {steps} to 0."))
}

fn chart(ChartArgs { values, colour }: ChartArgs) -> Result<Value, String> {
    let colour = colour.as_deref().map_or(Some(chart::BLUE), chart::parse_colour);
    let colour = colour.ok_or("A colour looks like #2b7bba.")?;
    let image = chart::bars(&values, colour).map_err(|error| error.to_string())?;
    let caption = text(format!("A chart of {} numbers.", values.len()));
    let image = json!({"type": "image", "data": BASE64_STANDARD.encode(image), "mimeType": "image/png"});
    Ok(json!({"content": [caption, image], "isError": false}))
}

async fn slow(SlowArgs { seconds }: SlowArgs, progress: &Progress) -> Value {
    let seconds = seconds.min(3600);
    for second in 0..seconds {
        progress.report(second, seconds, format!("{} s left", seconds - second));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    success(format!("Slept for {seconds} s."))
}

fn success(said: String) -> Value {
    json!({"content": [text(said)], "isError": false})
}

fn text(text: String) -> Value {
    json!({"type": "text", "text": text})
}

/// Reports progress if the client requested it with a token.
struct Progress {
    token: Option<Raw>,
}

impl Progress {
    fn report(&self, done: u32, of: u32, message: String) {
        let Some(token) = &self.token else { return };
        let (progress, total) = (f64::from(done), f64::from(of));
        let params = json!({"progressToken": token, "progress": progress, "total": total, "message": message});
        let notification = Notification { method: "notifications/progress".to_owned(), params: Some(raw(&params)) };
        // An error means that the client is gone; the end of stdin reports that.
        send(notification).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, arguments: &str) -> Value {
        let params = Raw::parse(format!(r#"{{"name":"{name}","arguments":{arguments}}}"#)).expect("JSON");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(call(Some(&params))).expect("a tool")
    }

    #[test]
    fn every_listed_tool_exists_and_takes_the_arguments_of_its_schema() {
        let listed = definitions();
        for tool in listed.as_array().expect("a list") {
            let name = tool["name"].as_str().expect("a name");
            let arguments = match name {
                "text_stats" => r#"{"text":"a bc"}"#,
                "chart" => r##"{"values":[1,2.5],"colour":"#00ff00"}"##,
                "countdown" => r#"{"from":2,"interval_ms":0}"#,
                "slow" => r#"{"seconds":0}"#,
                _ => r#"{"zone":"Asia/Tokyo"}"#,
            };
            let given: Value = serde_json::from_str(arguments).expect("JSON");
            for argument in given.as_object().expect("an object").keys() {
                assert!(tool["inputSchema"]["properties"][argument].is_object(), "{name} {argument}");
            }
            assert_eq!(result(name, arguments)["isError"], false, "{name}");
        }
        assert_eq!(listed.as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn mistakes_are_reported_to_the_model() {
        for (name, arguments, problem) in [
            ("now", r#"{"zone":"Nowhere"}"#, "There is no time zone"),
            ("text_stats", "{}", "missing field `text`"),
            ("chart", r#"{"values":[]}"#, "1 to 64"),
            ("chart", r#"{"values":[1],"colour":"red"}"#, "A colour looks like"),
        ] {
            let result = result(name, arguments);
            assert_eq!(result["isError"], true);
            let said = result["content"][0]["text"].as_str().expect("a text");
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn statistics_are_structured() {
        let stats = json!({"characters": 13, "words": 3, "lines": 2, "longest_word": "wörld"});
        assert_eq!(result("text_stats", r#"{"text":"hello wörld\nx"}"#)["structuredContent"], stats);
    }
}
