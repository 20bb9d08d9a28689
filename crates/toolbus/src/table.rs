//! Tables for a terminal: columns as wide as their content, the last one wrapped to the remaining width.

use std::collections::BTreeSet;
use toolbus_base::terminal_line;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: usize = 2;
/// Minimum width of the wrapped last column.
const MIN_WRAP_WIDTH: usize = 24;
/// The same in a table that is made to fit, and the minimum width of its other columns.
const MIN_FITTED_WRAP_WIDTH: usize = 16;
const MIN_COLUMN: usize = 8;
/// Minimum length of an id that is shortened.
const SHORT_ID: usize = 8;
const UUID_LENGTH: usize = 36;

/// Lays rows out in columns. With a width, the last column is wrapped; without one, it stays on one line.
pub fn table<const N: usize>(rows: &[[String; N]], width: Option<usize>) -> String {
    laid_out(rows, width, MIN_WRAP_WIDTH)
}

fn laid_out<const N: usize>(rows: &[[String; N]], width: Option<usize>, min_wrap: usize) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.clone().map(|cell| terminal_line(&cell))).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or_default());
    let before: usize = widths[..N - 1].iter().map(|width| width + GAP).sum();
    let room = width.map(|width| width.saturating_sub(before).max(min_wrap));
    let mut lines = Vec::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row[..N - 1].iter().zip(widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + GAP - cell.width()));
        }
        let mut parts = room.map_or_else(|| vec![row[N - 1].clone()], |room| wrap(&row[N - 1], room)).into_iter();
        line.push_str(&parts.next().unwrap_or_default());
        lines.push(line.trim_end().to_owned());
        lines.extend(parts.map(|part| format!("{}{part}", " ".repeat(before))));
    }
    lines.join("\n")
}

/// Like [`table`], but with a width the widest columns are shortened until the table fits. For tables whose cells are
/// only read, and are complete in JSON.
pub fn fitted<const N: usize>(rows: &[[String; N]], width: Option<usize>) -> String {
    let Some(width) = width else { return table(rows, None) };
    let natural = |column: usize| rows.iter().map(|row| terminal_line(&row[column]).width()).max().unwrap_or_default();
    let mut widths: [usize; N] = std::array::from_fn(natural);
    widths[N - 1] = widths[N - 1].min(MIN_FITTED_WRAP_WIDTH);
    let mut excess = (widths.iter().sum::<usize>() + (N - 1) * GAP).saturating_sub(width);
    while let Some(widest) = widths[..N - 1].iter_mut().max().filter(|widest| excess > 0 && **widest > MIN_COLUMN) {
        *widest -= 1;
        excess -= 1;
    }
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| {
            let cell = |at: usize| if at == N - 1 { row[at].clone() } else { shortened(&row[at], widths[at]) };
            std::array::from_fn(cell)
        })
        .collect();
    laid_out(&rows, Some(width), MIN_FITTED_WRAP_WIDTH)
}

/// Cuts a text to a width, with an ellipsis.
fn shortened(text: &str, width: usize) -> String {
    let text = terminal_line(text);
    if text.width() <= width {
        return text;
    }
    let mut cut = String::new();
    for c in text.chars() {
        if cut.width() + c.width().unwrap_or_default() >= width {
            break;
        }
        cut.push(c);
    }
    cut + "…"
}

/// Prefixes of ids that tell them apart, at least 8 characters long.
pub fn short_ids<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<String> {
    let ids: Vec<&str> = ids.collect();
    let prefix = |id: &str, length: usize| id.chars().take(length).collect::<String>();
    let longest = ids.iter().map(|id| id.chars().count()).max().unwrap_or_default();
    let is_unique = |length: &usize| {
        let different: BTreeSet<String> = ids.iter().map(|id| prefix(id, *length)).collect();
        different.len() == ids.len()
    };
    let length = (SHORT_ID..longest).find(is_unique).unwrap_or(longest);
    ids.iter().map(|id| prefix(id, length)).collect()
}

/// The name of a mailbox without most of the random part that the commands append to it.
pub fn short_mailbox(name: &str) -> String {
    match name.len().checked_sub(UUID_LENGTH).and_then(|at| name.split_at_checked(at)) {
        Some((before, random)) if before.ends_with('-') && uuid::Uuid::try_parse(random).is_ok() => {
            format!("{before}{}…", &random[..SHORT_ID])
        }
        _ => name.to_owned(),
    }
}

/// Breaks a text between words into lines of at most that width. A longer word gets a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("lines is never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The width of the terminal on standard output; `None` if it is not a terminal.
pub fn terminal_width() -> Option<usize> {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(width, _)| usize::from(width.0))
}

/// A time span in one unit.
pub fn age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..120_000 => format!("{}s", ms / 1_000),
        120_000..7_200_000 => format!("{}m", ms / 60_000),
        7_200_000..172_800_000 => format!("{}h", ms / 3_600_000),
        _ => format!("{}d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_can_neither_add_rows_nor_control_the_terminal() {
        let rows = [["a\nb\u{1b}[2J", "c\u{202e}"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, None), "a b\\u001b[2J  c\\u202e");
    }

    #[test]
    fn a_fitted_table_shortens_its_widest_columns() {
        let rows = [["AGENT", "ROLE", "NOTE"], ["a-very-long-name-of-an-agent", "reader", "one two three four"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            fitted(&rows, Some(40)),
            "AGENT           ROLE    NOTE\na-very-long-n…  reader  one two three\n                        four"
        );
        assert_eq!(fitted(&rows, None), table(&rows, None));
    }

    #[test]
    fn ids_are_shortened_as_far_as_they_differ() {
        let ids = ["7c0e1f42-aaaa", "7c0e1f42-abbb", "x"];
        assert_eq!(short_ids(ids.into_iter()), ["7c0e1f42-aa", "7c0e1f42-ab", "x"]);
        assert_eq!(short_ids(["7c0e1f42-aaaa"].into_iter()), ["7c0e1f42"]);
        assert_eq!(short_mailbox("local#cli-7c0e1f42-0000-4000-8000-000000000001"), "local#cli-7c0e1f42…");
        assert_eq!(short_mailbox("desktop"), "desktop");
    }

    #[test]
    fn the_last_column_is_wrapped_and_indented() {
        let rows = [["NAME", "DESCRIPTION"], ["日本", "one two three four five six"], ["x", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, Some(20)), "NAME  DESCRIPTION\n日本  one two three four five\n      six\nx");
        assert_eq!(table(&rows, None), "NAME  DESCRIPTION\n日本  one two three four five six\nx");
    }
}
