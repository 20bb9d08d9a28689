//! The run as a plot: one panel per shape, one bar per contender, rates on a
//! logarithmic axis that all panels share, so that bars compare across panels.

use std::fmt::Write;

use super::{
    RunFacts,
    number::{axis, duration, grouped},
};
use crate::{contenders::Contender, results::Results, shape::Shape};

const COLUMNS: usize = 2;
const MARGIN: f64 = 24.0;
const HEADER: f64 = 64.0;
const GUTTER: f64 = 28.0;
const NAME: f64 = 118.0;
const BARS: f64 = 300.0;
const VALUE: f64 = 118.0;
const ROW: f64 = 20.0;
const TITLE: f64 = 24.0;
const AXIS: f64 = 40.0;
const PANEL: f64 = NAME + BARS + VALUE;

pub fn render(results: &Results, run: &RunFacts) -> String {
    let shapes = results.shapes();
    let scale = Scale::of(results);
    let columns = COLUMNS.min(shapes.len().max(1));
    let mut panels = String::new();
    let mut top = HEADER;
    for row in shapes.chunks(columns) {
        let heights = row.iter().map(|&shape| panel_height(results, shape));
        for (column, &shape) in row.iter().enumerate() {
            let left = MARGIN + column as f64 * (PANEL + GUTTER);
            panel(&mut panels, results, shape, scale, left, top);
        }
        top += heights.fold(0.0, f64::max) + GUTTER;
    }
    let width = 2.0 * MARGIN + columns as f64 * (PANEL + GUTTER) - GUTTER;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {top}\" \
         width=\"{width}\" height=\"{top}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"30\" font-size=\"18\" font-weight=\"600\" fill=\"#1f2328\">\
         Bus throughput by load shape</text>\n\
         <text x=\"{MARGIN}\" y=\"50\" fill=\"#59636e\">{}</text>\n{panels}</svg>\n",
        escaped(&run.summary())
    )
}

fn panel_height(results: &Results, shape: Shape) -> f64 {
    TITLE + AXIS + ROW * bars(results, shape).len() as f64
}

/// The contenders measured in a shape, fastest first.
fn bars(results: &Results, shape: Shape) -> Vec<Contender> {
    let rate = |contender: &Contender| {
        let summary = results.summary(*contender, shape);
        summary.map_or(0.0, |summary| summary.rate)
    };
    let mut bars = results.contenders();
    bars.retain(|contender| rate(contender) > 0.0);
    bars.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    bars
}

fn panel(out: &mut String, results: &Results, shape: Shape, scale: Scale, left: f64, top: f64) {
    let bars = bars(results, shape);
    let origin = left + NAME;
    let first = top + TITLE;
    let bottom = first + ROW * bars.len() as f64;
    element(
        out,
        format!(
            "<text x=\"{left}\" y=\"{}\" font-size=\"14\" font-weight=\"600\" \
             fill=\"#1f2328\">{shape}<tspan dx=\"8\" font-size=\"12\" font-weight=\"400\" \
             fill=\"#59636e\">{}</tspan></text>",
            top + 14.0,
            shape.description()
        ),
    );
    ticks(out, scale, origin, first, bottom);
    element(
        out,
        format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#59636e\">\
             {}, logarithmic</text>",
            origin + BARS / 2.0,
            bottom + 32.0,
            shape.unit()
        ),
    );
    for (index, &contender) in bars.iter().enumerate() {
        let Some(summary) = results.summary(contender, shape) else {
            continue;
        };
        let y = first + ROW * index as f64;
        let latency = summary.p50_us.map_or_else(String::new, |p50| {
            format!(" <tspan fill=\"#59636e\" font-size=\"10\" font-weight=\"400\">p50 {}</tspan>", duration(p50))
        });
        let (weight, width) = (weight(contender), scale.width(summary.rate));
        let (middle, value) = (y + 14.0, origin + width + 5.0);
        element(
            out,
            format!(
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\" font-weight=\"{weight}\" \
                 fill=\"#1f2328\">{contender}</text>\
                 <rect x=\"{origin}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" \
                 rx=\"2\" fill=\"{}\"/>\
                 <text x=\"{value:.1}\" y=\"{middle}\" font-weight=\"{weight}\" \
                 fill=\"#1f2328\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\">\
                 {}{latency}</text>",
                origin - 6.0,
                y + 3.0,
                ROW - 6.0,
                colour(contender),
                grouped(summary.rate),
            ),
        );
    }
}

fn ticks(out: &mut String, scale: Scale, origin: f64, top: f64, bottom: f64) {
    for exponent in scale.low..=scale.high {
        let value = 10f64.powi(exponent);
        let x = origin + scale.width(value);
        element(
            out,
            format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" \
                 stroke=\"#d1d9e0\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" \
                 font-size=\"10\" fill=\"#59636e\">{}</text>",
                bottom + 14.0,
                axis(value)
            ),
        );
    }
}

/// A logarithmic scale over whole powers of ten.
#[derive(Clone, Copy)]
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn of(results: &Results) -> Self {
        let mut rates = Vec::new();
        for contender in results.contenders() {
            let summaries = results.shapes().into_iter();
            rates.extend(summaries.filter_map(|shape| results.summary(contender, shape)));
        }
        let logs = || rates.iter().map(|summary| summary.rate.max(1.0).log10());
        let low = logs().fold(f64::INFINITY, f64::min).min(6.0).floor() as i32;
        let high = logs().fold(0.0, f64::max).ceil() as i32;
        Self { low, high: high.max(low + 1) }
    }

    fn width(self, rate: f64) -> f64 {
        let position = rate.max(1.0).log10() - f64::from(self.low);
        (position / f64::from(self.high - self.low)).max(0.0) * BARS
    }
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Toolbus => "#d1480f",
        Contender::ToolbusJson => "#f0a36b",
        Contender::RelayFast => "#6e7781",
        Contender::RelayMultiThread => "#8c959f",
        Contender::NatsCore => "#0969da",
        Contender::JetStreamLog => "#7fbaf9",
        Contender::JetStream => "#54a3f7",
        Contender::JetStreamAlways => "#a5cdfb",
        Contender::Bamboo | Contender::BambooHost => "#2f8f46",
    }
}

fn weight(contender: Contender) -> u32 {
    if contender == Contender::Toolbus { 700 } else { 400 }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn element(out: &mut String, text: String) {
    writeln!(out, "{text}").expect("writing to a string never fails");
}
