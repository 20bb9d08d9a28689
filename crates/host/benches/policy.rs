//! Cost of a decision with 1,000 rules, and of filtering a list of 1,000 tools for a role: `cargo xtask bench policy`.

use serde_json::json;
use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};
use toolbus_host::{Owners, Pins, Viewer};
use toolbus_mcp::{ListKind, Raw, raw};
use toolbus_policy::{Arguments, Item, PolicySet, Question};

const RULES: usize = 1000;
const TOOLS: usize = 1000;
const ROUNDS: usize = 200;
const WARM_UP: usize = 20;

fn main() {
    let set = rules();
    println!("{:<58} {:>10} {:>10} {:>10} {:>10}", "", "least", "median", "p99", "goal");
    let goal = Duration::from_micros(2);
    decision(&set, "decision with 1,000 rules: a name", "plain_500", None, goal);
    decision(&set, "… a name with its server", "tool_250", None, goal);
    decision(&set, "… a prefix and a suffix", "middle_750_x_end", None, goal);
    decision(&set, "… a name without a rule", "nothing_of_the_kind", None, goal);
    let small = json!({"path": "/tmp/a", "size": 5, "text": "hello"}).to_string();
    decision(&set, "… with conditions on arguments", "guarded", Some(small), goal);
    let large = json!({"text": "x".repeat(1 << 20), "path": "/tmp/a", "size": 5}).to_string();
    decision(&set, "… with conditions on 1 MiB of arguments (text)", "guarded", Some(large), Duration::from_millis(5));
    let items: Vec<_> = (0..40_000).map(|n| json!({"k": n, "v": "some text"})).collect();
    let nested = json!({"items": items, "path": "/tmp/a", "size": 5}).to_string();
    decision(
        &set,
        "… with conditions on 1 MB of arguments (many values)",
        "guarded",
        Some(nested),
        Duration::from_millis(5),
    );
    list(&set);
}

/// A quarter each: names, names with a server, prefixes, and patterns with a star in the middle; and one rule with
/// conditions.
fn rules() -> PolicySet {
    let mut text = String::from("[roles.reader]\nallow = [\n");
    for n in 0..RULES - 1 {
        let line = match n % 4 {
            0 => format!("\"plain_{n}\""),
            1 => format!("\"files/tool_{}\"", n - 1),
            2 => format!("\"prefix_{n}_*\""),
            _ => format!("\"middle_{}_*_end\"", n - 1),
        };
        writeln!(text, "{line},").expect("a string");
    }
    text.push_str(
        "\"middle_750_*_end\", \"tool_250\"]\n[[roles.reader.rules]]\neffect = \"allow\"\nmatch = [\"guarded\"]\n",
    );
    text.push_str("when = [{ pointer = \"/path\", prefix = \"/tmp/\" }, { pointer = \"/size\", max = 10 }]\n");
    PolicySet::read(&text).expect("rules").0
}

fn decision(set: &PolicySet, what: &str, tool: &str, arguments: Option<String>, goal: Duration) {
    let arguments = arguments.map(|text| serde_json::value::RawValue::from_string(text).expect("JSON"));
    let question = Question {
        role: Some("reader"),
        server: "files",
        item: Item::Tool(tool),
        arguments: arguments.as_ref().map_or(Arguments::Absent, |arguments| Arguments::Known(arguments.get())),
    };
    let is_large = arguments.as_ref().is_some_and(|arguments| arguments.get().len() > 100_000);
    let times_each = if is_large { 1 } else { 1000 };
    measure(what, goal, times_each, || drop(black_box(set.decide(black_box(&question)))));
}

fn list(set: &PolicySet) {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "size": {"type": "integer"}}});
    let tool = |n: usize| json!({"name": format!("plain_{n}"), "description": "does something", "inputSchema": schema});
    let page: Raw = raw(&json!({"tools": (0..TOOLS).map(tool).collect::<Vec<_>>()}));
    let owners = Owners::default();
    let pins = Pins::in_memory();
    let viewer = Viewer {
        role: Some("reader"),
        policy: set,
        owners: &owners,
        server: "files",
        index: 0,
        prefix: None,
        pins: &pins,
        pin: None,
        era: None,
    };
    let goal = Duration::from_millis(1);
    // One per round, because filtering consumes the page.
    let mut pages = vec![page; ROUNDS + WARM_UP];
    measure("tools/list of 1,000 tools, 250 of them for the role", goal, 1, || {
        let page = pages.pop().expect("one for each round");
        drop(black_box(viewer.page(ListKind::Tools, page).expect("a page")));
    });
}

fn measure(what: &str, goal: Duration, times_each: u32, mut work: impl FnMut()) {
    // Fills the caches of the matcher.
    for _ in 0..WARM_UP {
        work();
    }
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            (0..times_each).for_each(|_| work());
            begin.elapsed() / times_each
        })
        .collect();
    times.sort_unstable();
    let (least, median, p99) = (times[0], times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    let verdict = if median <= goal { "reached" } else { "MISSED" };
    let [least, median, p99, goal] = [least, median, p99, goal].map(shown);
    println!("{what:<58} {least:>10} {median:>10} {p99:>10} {goal:>10} {verdict}");
}

fn shown(time: Duration) -> String {
    format!("{:.2} µs", time.as_nanos() as f64 / 1000.0)
}
