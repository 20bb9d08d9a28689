//! The run as a plot: added latency and rate of each path, in both eras.

use super::{Era, McpOptions, Path, Results};
use crate::report::{
    chart::{Bar, Chart, Panel},
    number::{duration, grouped},
};

pub fn render(results: &Results, options: &McpOptions) -> String {
    let eras = [Era::Modern, Era::Legacy];
    let panels = eras.map(|era| added(results, era)).into_iter();
    let panels = panels.chain(eras.map(|era| rates(results, era, options.in_flight))).collect();
    let summary = format!("medians of {} × {} s", options.rounds(), options.seconds());
    Chart { title: "A tool call through each path".to_owned(), summary, panels }.render()
}

fn added(results: &Results, era: Era) -> Panel {
    let direct = results.of(Path::Direct, era).map_or(0.0, |sample| sample.p50_us);
    let mut bars = bars(results, era, |path, sample| {
        let added = sample.p50_us - direct;
        (path != Path::Direct).then(|| (added, duration(added), format!("p99 {}", duration(sample.p99_us))))
    });
    bars.sort_by(|a, b| a.value.total_cmp(&b.value));
    let description = "of a lone call, beyond the direct call".to_owned();
    Panel { title: format!("Added latency, {}", era.name()), description, unit: "µs, p50".to_owned(), bars }
}

fn rates(results: &Results, era: Era, in_flight: u32) -> Panel {
    let mut bars = bars(results, era, |_, sample| Some((sample.rate, grouped(sample.rate), String::new())));
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    let description = format!("with {in_flight} calls in flight");
    Panel { title: format!("Rate, {}", era.name()), description, unit: "calls/s".to_owned(), bars }
}

fn bars(
    results: &Results,
    era: Era,
    figure: impl Fn(Path, super::Sample) -> Option<(f64, String, String)>,
) -> Vec<Bar> {
    let bar = |path: Path| {
        let (value, text, note) = figure(path, results.of(path, era)?)?;
        Some(Bar { name: path.name().to_owned(), value, text, note, colour: colour(path), is_ours: is_ours(path) })
    };
    Path::ALL.into_iter().filter_map(bar).collect()
}

fn is_ours(path: Path) -> bool {
    matches!(path, Path::Toolbus | Path::ToolbusSafe | Path::ToolbusHttp | Path::ToolbusHttpSafe)
}

fn colour(path: Path) -> &'static str {
    match path {
        Path::Toolbus | Path::ToolbusHttp => "#d1480f",
        Path::ToolbusSafe | Path::ToolbusHttpSafe => "#f0a36b",
        Path::Direct | Path::Relay => "#8c959f",
        _ => "#0969da",
    }
}
