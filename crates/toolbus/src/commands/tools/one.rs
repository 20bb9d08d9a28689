//! One tool as text: what it is for, its arguments, and how to call it.

use crate::catalog::KnownTool;
use crate::schema_text;
use crate::table::{table, wrap};
use toolbus_base::terminal_line;
use toolbus_mcp::Raw;

fn where_is(tool: KnownTool<'_>) -> String {
    let away = if tool.host.online { "" } else { ", which is away" };
    match tool.pool {
        Some(pool) => format!("the {} hosts of pool {}{away}", pool.hosts.len(), pool.name),
        None => format!("host {}{away}", tool.host.name),
    }
}

pub fn as_text(tool: KnownTool<'_>, width: Option<usize>) -> String {
    let name = tool.name();
    let title = tool.title().map_or(String::new(), |title| format!(" ({title})"));
    let mut parts = vec![format!("{name}{title}, of server {} on {}", tool.server.name, where_is(tool))];
    let description = tool.description();
    if !description.is_empty() {
        // Keeps the paragraphs of the server.
        let lines = description.lines().map(|line| match width {
            Some(width) => wrap(line, width).join("\n"),
            None => line.to_owned(),
        });
        parts.push(lines.collect::<Vec<_>>().join("\n"));
    }
    let hints = tool.hints();
    if !hints.is_empty() {
        parts.push(format!("The server marks it as {}.", hints.join(", ")));
    }
    let arguments = tool.schema("inputSchema");
    let fields = arguments.as_ref().map(schema_text::property_names).unwrap_or_default();
    parts.push(match &arguments {
        Some(schema) if !fields.is_empty() => fields_table("ARGUMENT", schema, &fields, width),
        _ => "It takes no arguments.".to_owned(),
    });
    if let Some(schema) = tool.schema("outputSchema") {
        let fields = schema_text::property_names(&schema);
        parts.extend((!fields.is_empty()).then(|| fields_table("RESULT", &schema, &fields, width)));
    }
    let required = |field: &&String| schema_text::is_required(&tool.input_schema(), field);
    let given: String = fields.iter().filter(required).map(|field| format!(" --arg {field}=VALUE")).collect();
    parts.push(terminal_line(&format!("toolbus call {name}{given}")));
    parts.join("\n\n")
}

fn fields_table(header: &str, schema: &Raw, fields: &[String], width: Option<usize>) -> String {
    let schema = serde_json::from_str(schema.get()).unwrap_or_default();
    let mut rows = vec![[header, "TYPE", "DESCRIPTION"].map(str::to_owned)];
    rows.extend(schema_text::rows(&schema, fields));
    table(&rows, width)
}
