//! Tables for a terminal: columns as wide as their content, the last one wrapped to the remaining width.

use toolbus_base::terminal_line;
use unicode_width::UnicodeWidthStr;

const GAP: usize = 2;
/// Minimum width of the wrapped last column.
const MIN_WRAP_WIDTH: usize = 24;

/// Lays rows out in columns. With a width, the last column is wrapped; without one, it stays on one line.
pub fn table<const N: usize>(rows: &[[String; N]], width: Option<usize>) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.clone().map(|cell| terminal_line(&cell))).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or_default());
    let before: usize = widths[..N - 1].iter().map(|width| width + GAP).sum();
    let room = width.map(|width| width.saturating_sub(before).max(MIN_WRAP_WIDTH));
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
    fn the_last_column_is_wrapped_and_indented() {
        let rows = [["NAME", "DESCRIPTION"], ["日本", "one two three four five six"], ["x", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, Some(20)), "NAME  DESCRIPTION\n日本  one two three four five\n      six\nx");
        assert_eq!(table(&rows, None), "NAME  DESCRIPTION\n日本  one two three four five six\nx");
    }
}
