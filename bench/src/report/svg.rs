//! The run as a plot: one panel per shape, one bar per contender.

use super::{
    RunFacts,
    chart::{Bar, Chart, Panel},
    number::{duration, grouped},
};
use crate::{contenders::Contender, results::Results, shape::Shape};

pub fn render(results: &Results, run: &RunFacts) -> String {
    let panels = results.shapes().into_iter().map(|shape| panel(results, shape)).collect();
    Chart { title: "Bus throughput by load shape".to_owned(), summary: run.summary(), panels }.render()
}

/// The contenders measured in a shape, fastest first.
fn panel(results: &Results, shape: Shape) -> Panel {
    let bar = |contender: Contender| {
        let summary = results.summary(contender, shape).filter(|summary| summary.rate > 0.0)?;
        Some(Bar {
            name: contender.to_string(),
            value: summary.rate,
            text: grouped(summary.rate),
            note: summary.p50_us.map_or_else(String::new, |p50| format!("p50 {}", duration(p50))),
            colour: colour(contender),
            is_ours: contender == Contender::Toolbus,
        })
    };
    let mut bars: Vec<Bar> = results.contenders().into_iter().filter_map(bar).collect();
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    let (title, description) = (shape.to_string(), shape.description().to_string());
    Panel { title, description, unit: shape.unit().to_string(), bars }
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Toolbus => "#d1480f",
        Contender::ToolbusJson => "#f0a36b",
        Contender::RelayFast => "#6e7781",
        Contender::RelayMultiThread => "#8c959f",
        Contender::NatsCore => "#0969da",
        Contender::ClusterOfOne | Contender::ClusterOfThree => "#e8833a",
        Contender::JetStreamReplicated | Contender::JetStreamReplicatedAlways => "#c3defc",
        Contender::JetStreamLog => "#7fbaf9",
        Contender::JetStream => "#54a3f7",
        Contender::JetStreamAlways => "#a5cdfb",
        Contender::Bamboo | Contender::BambooHost => "#2f8f46",
    }
}
