//! Renders a tool's result for a terminal: text is printed, images and other binary content are saved to files, and
//! structured content is printed if there is no text.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use toolbus_base::terminal_line;

#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    #[error("can't save to {}: {source}", file.display())]
    Save { file: PathBuf, source: io::Error },
}

/// A rendered result.
#[derive(Debug, Default)]
pub struct Shown {
    pub lines: Vec<String>,
    /// Whether the tool reported an error (`isError`).
    pub is_error: bool,
    /// The error of the first file that could not be written.
    pub unsaved: Option<ShowError>,
}

/// Maximum number of files with the same base name in one folder.
const MAX_FILES: u32 = 10_000;
/// A longer subtype is no extension.
const MAX_EXTENSION: usize = 5;

pub fn show(tool: &str, result: &Value, folder: &Path) -> Shown {
    let mut shown = Shown { is_error: result["isError"] == Value::Bool(true), ..Shown::default() };
    let mut has_text = false;
    for block in result["content"].as_array().into_iter().flatten() {
        let text = |key: &str| block[key].as_str().unwrap_or_default();
        match text("type") {
            "text" => {
                has_text = true;
                shown.lines.push(printable(text("text")));
            }
            "image" | "audio" => shown.add(save(tool, text("mimeType"), text("data"), folder)),
            "resource" => shown.add(embedded(tool, &block["resource"], folder)),
            "resource_link" => {
                let name = block["title"].as_str().unwrap_or_else(|| text("name"));
                shown.lines.push(terminal_line(&format!("{} ({name})", text("uri"))));
            }
            _ => shown.lines.push(printable(&block.to_string())),
        }
    }
    if !has_text && !result["structuredContent"].is_null() {
        shown.lines.push(format!("{:#}", result["structuredContent"]));
    }
    shown
}

impl Shown {
    fn add(&mut self, saved: Result<String, ShowError>) {
        match saved {
            Ok(line) => self.lines.push(line),
            Err(error) => {
                self.unsaved.get_or_insert(error);
            }
        }
    }
}

fn embedded(tool: &str, resource: &Value, folder: &Path) -> Result<String, ShowError> {
    let uri = terminal_line(resource["uri"].as_str().unwrap_or("resource"));
    match (resource["text"].as_str(), resource["blob"].as_str()) {
        (Some(text), _) => Ok(format!("{uri}:\n{}", printable(text))),
        (None, Some(blob)) => {
            let saved = save(tool, resource["mimeType"].as_str().unwrap_or_default(), blob, folder)?;
            Ok(format!("{uri}: {saved}"))
        }
        (None, None) => Ok(uri),
    }
}

/// Saves under an unused name; no file is overwritten.
fn save(tool: &str, mime_type: &str, data: &str, folder: &Path) -> Result<String, ShowError> {
    let mime_type = terminal_line(mime_type);
    let Ok(bytes) = BASE64_STANDARD.decode(data) else { return Ok(format!("({mime_type}, invalid base64)")) };
    let stem: String =
        tool.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let stem = stem.trim_start_matches('.');
    let stem = if stem.is_empty() { "result" } else { stem };
    let mut number = 0;
    loop {
        let name = if number == 0 { stem.to_owned() } else { format!("{stem}-{number}") };
        let file = folder.join(format!("{name}.{}", extension(&mime_type)));
        let opened = OpenOptions::new().write(true).create_new(true).open(&file);
        match opened.and_then(|mut open| open.write_all(&bytes)) {
            Ok(()) => return Ok(format!("{mime_type}, {} bytes, saved to {}", bytes.len(), file.display())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_FILES => number += 1,
            Err(source) => return Err(ShowError::Save { file, source }),
        }
    }
}

/// The usual extension of files of that type.
fn extension(mime_type: &str) -> String {
    let essence = mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known = match essence.as_str() {
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "image/vnd.microsoft.icon" => "ico",
        "audio/wave" | "audio/vnd.wave" => "wav",
        "audio/mpeg" => "mp3",
        "audio/mp4" => "m4a",
        "video/quicktime" => "mov",
        "video/x-matroska" => "mkv",
        "text/plain" => "txt",
        "text/markdown" => "md",
        "text/javascript" => "js",
        "application/gzip" => "gz",
        "application/msword" => "doc",
        "application/vnd.ms-excel" => "xls",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document" => "docx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation" => "pptx",
        "application/octet-stream" => "bin",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    // Most other subtypes are their extension: png, flac, csv, pdf; or the format after the plus: json, xml.
    let subtype = essence.split_once('/').map_or("", |(_, subtype)| subtype);
    let name = subtype.rsplit('+').next().unwrap_or_default().trim_start_matches("x-");
    let is_plain = (1..=MAX_EXTENSION).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { name.to_owned() } else { "bin".to_owned() }
}

/// Removes carriage returns and other control characters, which are of no use in a text.
fn printable(text: &str) -> String {
    text.trim_end_matches('\n').chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_content_types_are_shown_and_no_file_is_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let result = json!({"content": [
            {"type": "text", "text": "hello\n\u{1b}[31mred"},
            {"type": "image", "mimeType": "image/png", "data": "AAEC"},
            {"type": "audio", "mimeType": "audio/wav", "data": "AA=="},
            {"type": "image", "mimeType": "image/png", "data": "%%%"},
            {"type": "resource", "resource": {"uri": "a://b", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "a://c", "blob": "AA==", "mimeType": "x/unheard-of"}},
            {"type": "resource_link", "uri": "a://d", "name": "dee"},
            {"type": "hologram", "rays": 3},
        ], "structuredContent": {"unseen": 1}});
        let shown = show("../evil tool", &result, folder.path());
        assert!(shown.unsaved.is_none(), "{shown:?}");
        let path = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(
            shown.lines,
            [
                "hello\n[31mred".to_owned(),
                format!("image/png, 3 bytes, saved to {}", path("_evil_tool.png")),
                format!("audio/wav, 1 bytes, saved to {}", path("_evil_tool.wav")),
                "(image/png, invalid base64)".to_owned(),
                "a://b:\ninside".to_owned(),
                format!("a://c: x/unheard-of, 1 bytes, saved to {}", path("_evil_tool.bin")),
                "a://d (dee)".to_owned(),
                r#"{"rays":3,"type":"hologram"}"#.to_owned(),
            ]
        );
        show("../evil tool", &result, folder.path());
        assert_eq!(std::fs::read(path("_evil_tool-1.png")).expect("a second file"), [0, 1, 2]);
    }

    #[test]
    fn a_file_gets_the_extension_of_its_type() {
        let check = |mime_type: &str, expected: &str| assert_eq!(extension(mime_type), expected, "{mime_type}");
        check("image/png", "png");
        check("IMAGE/JPEG", "jpg");
        check("image/svg+xml", "svg");
        check("text/csv; charset=utf-8", "csv");
        check("text/markdown", "md");
        check("audio/x-wav", "wav");
        check("audio/flac", "flac");
        check("video/webm", "webm");
        check("application/vnd.example.report+json", "json");
        check("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx");
        check("application/octet-stream", "bin");
        check("a/../b", "bin");
        check("", "bin");
    }

    #[test]
    fn text_is_shown_even_if_an_image_cannot_be_saved() {
        let image = json!({"type": "image", "mimeType": "image/png", "data": "AAEC"});
        let result = json!({"content": [image, {"type": "text", "text": "hello"}]});
        let shown = show("t", &result, Path::new("/does/not/exist"));
        assert_eq!(shown.lines, ["hello"]);
        assert!(shown.unsaved.is_some());
    }

    #[test]
    fn structured_content_is_shown_if_there_is_no_text() {
        let result = json!({"content": [], "structuredContent": {"a": 1}, "isError": true});
        let shown = show("t", &result, Path::new("."));
        assert_eq!(shown.lines, ["{\n  \"a\": 1\n}"]);
        assert!(shown.is_error);
    }
}
