//! Horizontal bars on a logarithmic axis, in panels. Panels with the same unit share the scale, so that bars compare across
//! panels.

use std::fmt::Write;

use super::number::axis;

const COLUMNS: usize = 2;
const MARGIN: f64 = 24.0;
const HEADER: f64 = 64.0;
const GUTTER: f64 = 28.0;
const NAME: f64 = 124.0;
const BARS: f64 = 300.0;
const VALUE: f64 = 118.0;
const ROW: f64 = 20.0;
const TITLE: f64 = 24.0;
const AXIS: f64 = 40.0;
const PANEL: f64 = NAME + BARS + VALUE;

pub struct Chart {
    pub title: String,
    pub summary: String,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    pub title: String,
    pub description: String,
    pub unit: String,
    /// In the order in which they are shown.
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub name: String,
    pub value: f64,
    /// The value as text.
    pub text: String,
    /// More about it, in small letters; may be empty.
    pub note: String,
    pub colour: &'static str,
    pub is_ours: bool,
}

impl Chart {
    pub fn render(&self) -> String {
        let columns = COLUMNS.min(self.panels.len().max(1));
        let mut panels = String::new();
        let mut top = HEADER;
        for row in self.panels.chunks(columns) {
            for (column, panel) in row.iter().enumerate() {
                let left = MARGIN + column as f64 * (PANEL + GUTTER);
                panel.draw(&mut panels, self.scale(&panel.unit), left, top);
            }
            top += row.iter().map(Panel::height).fold(0.0, f64::max) + GUTTER;
        }
        let width = 2.0 * MARGIN + columns as f64 * (PANEL + GUTTER) - GUTTER;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {top}\" \
             width=\"{width}\" height=\"{top}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{MARGIN}\" y=\"30\" font-size=\"18\" font-weight=\"600\" fill=\"#1f2328\">{}</text>\n\
             <text x=\"{MARGIN}\" y=\"50\" fill=\"#59636e\">{}</text>\n{panels}</svg>\n",
            escaped(&self.title),
            escaped(&self.summary)
        )
    }

    fn scale(&self, unit: &str) -> Scale {
        let panels = self.panels.iter().filter(|panel| panel.unit == unit);
        Scale::of(panels.flat_map(|panel| panel.bars.iter().map(|bar| bar.value)))
    }
}

impl Panel {
    fn height(&self) -> f64 {
        TITLE + AXIS + ROW * self.bars.len() as f64
    }

    fn draw(&self, out: &mut String, scale: Scale, left: f64, top: f64) {
        let origin = left + NAME;
        let first = top + TITLE;
        let bottom = first + ROW * self.bars.len() as f64;
        element(
            out,
            format!(
                "<text x=\"{left}\" y=\"{}\" font-size=\"14\" font-weight=\"600\" \
                 fill=\"#1f2328\">{}<tspan dx=\"8\" font-size=\"12\" font-weight=\"400\" \
                 fill=\"#59636e\">{}</tspan></text>",
                top + 14.0,
                escaped(&self.title),
                escaped(&self.description)
            ),
        );
        ticks(out, scale, origin, first, bottom);
        element(
            out,
            format!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#59636e\">{}, logarithmic</text>",
                origin + BARS / 2.0,
                bottom + 32.0,
                escaped(&self.unit)
            ),
        );
        for (index, bar) in self.bars.iter().enumerate() {
            bar.draw(out, scale, origin, first + ROW * index as f64);
        }
    }
}

impl Bar {
    fn draw(&self, out: &mut String, scale: Scale, origin: f64, y: f64) {
        let note = match self.note.as_str() {
            "" => String::new(),
            note => format!(" <tspan fill=\"#59636e\" font-size=\"10\" font-weight=\"400\">{}</tspan>", escaped(note)),
        };
        let (weight, width) = (if self.is_ours { 700 } else { 400 }, scale.width(self.value));
        let (middle, value) = (y + 14.0, origin + width + 5.0);
        element(
            out,
            format!(
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\" font-weight=\"{weight}\" fill=\"#1f2328\">{}</text>\
                 <rect x=\"{origin}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" rx=\"2\" fill=\"{}\"/>\
                 <text x=\"{value:.1}\" y=\"{middle}\" font-weight=\"{weight}\" fill=\"#1f2328\" stroke=\"#ffffff\" \
                 stroke-width=\"3\" paint-order=\"stroke\">{}{note}</text>",
                origin - 6.0,
                escaped(&self.name),
                y + 3.0,
                ROW - 6.0,
                self.colour,
                escaped(&self.text),
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
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let logs = || values.clone().map(|value| value.max(1.0).log10());
        let low = logs().fold(f64::INFINITY, f64::min).min(6.0).floor() as i32;
        let high = logs().fold(0.0, f64::max).ceil() as i32;
        Self { low, high: high.max(low + 1) }
    }

    fn width(self, value: f64) -> f64 {
        let position = value.max(1.0).log10() - f64::from(self.low);
        (position / f64::from(self.high - self.low)).max(0.0) * BARS
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn element(out: &mut String, text: String) {
    writeln!(out, "{text}").expect("writing to a string never fails");
}
