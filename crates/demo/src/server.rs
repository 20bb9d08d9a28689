//! The tools, the resource and the prompt.

use crate::{chart, texts};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Zoned;
use jiff::tz::TimeZone;
use rmcp::handler::server::router::prompt::PromptRouter;
use rmcp::handler::server::tool::ToolRouter;
use rmcp::handler::server::wrapper::{Json, Parameters};
use rmcp::model::{
    CallToolResult, ContentBlock, Implementation, ListResourcesResult, PaginatedRequestParams,
    ProgressNotificationParam, PromptMessage, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    Resource, ResourceContents, Role, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, prompt, prompt_handler, prompt_router, tool, tool_handler, tool_router,
};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const ABOUT_URI: &str = "demo://about";

pub struct Demo {
    tool_router: ToolRouter<Self>,
    prompt_router: PromptRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
struct TextArgs {
    /// The text to analyse.
    text: String,
}

/// Statistics of a text.
#[derive(Serialize, JsonSchema)]
#[schemars(transform = RecursiveTransform(remove_format))]
struct TextStats {
    characters: usize,
    words: usize,
    lines: usize,
    /// The longest word; null if there is none.
    longest_word: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct NowArgs {
    /// A time zone such as Europe/Berlin. Default: UTC.
    #[serde(default)]
    zone: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(transform = RecursiveTransform(remove_format))]
struct CountdownArgs {
    /// The number to start from.
    #[serde(default = "default_ten")]
    #[schemars(range(min = 1, max = 1000))]
    from: u32,
    /// Milliseconds between two steps.
    #[serde(default = "default_interval_ms")]
    #[schemars(range(min = 0, max = 10_000))]
    interval_ms: u64,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(transform = RecursiveTransform(remove_format))]
struct ChartArgs {
    /// One bar per number.
    #[schemars(length(min = 1, max = 64))]
    values: Vec<f64>,
    /// Colour of the bars, such as #2b7bba.
    #[serde(default)]
    #[schemars(regex(pattern = "^#[0-9a-fA-F]{6}$"))]
    colour: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(transform = RecursiveTransform(remove_format))]
struct SlowArgs {
    /// Duration in seconds.
    #[serde(default = "default_ten")]
    #[schemars(range(min = 0, max = 3600))]
    seconds: u32,
}

#[derive(Deserialize, JsonSchema)]
struct TourArgs {
    /// A topic that the tour should focus on.
    #[serde(default)]
    topic: Option<String>,
}

/// `uint32` and the like are formats of schemars, not of JSON Schema; validators warn about unknown formats.
fn remove_format(schema: &mut Schema) {
    schema.remove("format");
}

fn default_ten() -> u32 {
    10
}

fn default_interval_ms() -> u64 {
    200
}

#[tool_router]
impl Demo {
    pub fn new() -> Self {
        Self { tool_router: Self::tool_router(), prompt_router: Self::prompt_router() }
    }

    #[tool(
        description = "Count the characters, words and lines of a text. The result is structured.",
        annotations(title = "Text statistics", read_only_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn text_stats(&self, Parameters(args): Parameters<TextArgs>) -> Json<TextStats> {
        let words: Vec<&str> = args.text.split_whitespace().collect();
        let longest = words.iter().copied().max_by_key(|word| word.chars().count());
        Json(TextStats {
            characters: args.text.chars().count(),
            words: words.len(),
            lines: args.text.lines().count(),
            longest_word: longest.map(str::to_owned),
        })
    }

    #[tool(
        description = "The current time, in a time zone of your choice.",
        annotations(title = "Clock", read_only_hint = true, open_world_hint = false)
    )]
    async fn now(&self, Parameters(args): Parameters<NowArgs>) -> CallToolResult {
        let name = args.zone.as_deref().unwrap_or("UTC");
        match TimeZone::get(name) {
            Ok(zone) => {
                let now = Zoned::now().with_time_zone(zone);
                success(now.strftime("%A, %-d %B %Y, %H:%M:%S %Z (UTC%:z)").to_string())
            }
            Err(_) => failure(format!("There is no time zone {name:?}. Names look like Europe/Berlin or Asia/Tokyo.")),
        }
    }

    #[tool(
        description = "Count down to zero, with progress at every step.",
        annotations(title = "Countdown", read_only_hint = true, open_world_hint = false)
    )]
    async fn countdown(
        &self,
        Parameters(args): Parameters<CountdownArgs>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        for step in 0..args.from.min(1000) {
            if !wait(&context, Duration::from_millis(args.interval_ms.min(10_000))).await {
                return failure(format!("Stopped at {}.", args.from - step));
            }
            report(&context, step + 1, args.from, format!("{} to go", args.from - step - 1)).await;
        }
        success(format!("Counted from {} to 0.", args.from))
    }

    #[tool(
        description = "Draw a bar chart of some numbers, as a PNG image.",
        annotations(title = "Bar chart", read_only_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn chart(&self, Parameters(args): Parameters<ChartArgs>) -> CallToolResult {
        let colour = args.colour.as_deref().map_or(Some(chart::BLUE), chart::parse_colour);
        let Some(colour) = colour else { return failure("A colour looks like #2b7bba.") };
        match chart::bars(&args.values, colour) {
            Ok(image) => {
                let caption = ContentBlock::text(format!("A chart of {} numbers.", args.values.len()));
                CallToolResult::success(vec![caption, ContentBlock::image(BASE64_STANDARD.encode(image), "image/png")])
            }
            Err(error) => failure(error.to_string()),
        }
    }

    #[tool(
        description = "Sleep for some seconds, report progress, and stop at once when cancelled.",
        annotations(title = "Slow", read_only_hint = true, open_world_hint = false)
    )]
    async fn slow(
        &self,
        Parameters(args): Parameters<SlowArgs>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let seconds = args.seconds.min(3600);
        for second in 0..seconds {
            report(&context, second, seconds, format!("{} s left", seconds - second)).await;
            if !wait(&context, Duration::from_secs(1)).await {
                return failure(format!("Cancelled after {second} s."));
            }
        }
        success(format!("Slept for {seconds} s."))
    }
}

#[prompt_router]
impl Demo {
    #[prompt(description = "Ask for a short tour of these tools.")]
    async fn tour(&self, Parameters(args): Parameters<TourArgs>) -> Vec<PromptMessage> {
        let topic = args.topic.map_or(String::new(), |topic| format!(" Focus on {topic}."));
        let text = format!("Show me what the tools of this server can do: try each of them once, and explain.{topic}");
        vec![PromptMessage::new_text(Role::User, text)]
    }
}

#[tool_handler(router = self.tool_router)]
#[prompt_handler(router = self.prompt_router)]
impl ServerHandler for Demo {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().enable_prompts().build();
        let implementation = Implementation::new("toolbus-demo", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(implementation).with_instructions(texts::INSTRUCTIONS)
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let about = Resource::new(ABOUT_URI, "about")
            .with_title("About this server")
            .with_description("What this is, and how to replace it by servers of your own.")
            .with_mime_type("text/markdown");
        Ok(ListResourcesResult::with_all_items(vec![about]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if request.uri != ABOUT_URI {
            return Err(ErrorData::resource_not_found(format!("there is no resource {}", request.uri), None));
        }
        let about = ResourceContents::text(texts::ABOUT, ABOUT_URI).with_mime_type("text/markdown");
        Ok(ReadResourceResult::new(vec![about]).into())
    }
}

fn success(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn failure(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// Returns false if the call was cancelled before the time passed.
async fn wait(context: &RequestContext<RoleServer>, time: Duration) -> bool {
    tokio::select! {
        () = tokio::time::sleep(time) => true,
        () = context.ct.cancelled() => false,
    }
}

/// Sends progress only if the client requested it with a token.
async fn report(context: &RequestContext<RoleServer>, done: u32, of: u32, message: String) {
    if let Some(token) = context.meta.get_progress_token() {
        let progress = ProgressNotificationParam::new(token, f64::from(done));
        // An error means that the client is gone; the end of the call reports that.
        context.peer.notify_progress(progress.with_total(f64::from(of)).with_message(message)).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_have_no_formats_that_validators_do_not_know() {
        for tool in Demo::tool_router().list_all() {
            let definition = serde_json::to_string(&tool).expect("a tool is JSON");
            assert!(!definition.contains("\"format\""), "{definition}");
        }
    }
}
