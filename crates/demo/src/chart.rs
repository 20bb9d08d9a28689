//! Renders bar charts as PNG images: a baseline, and one bar per number, upwards or downwards.

pub const BLUE: Colour = [0x2b, 0x7b, 0xba];

const WIDTH: usize = 320;
const HEIGHT: usize = 160;
const MARGIN: usize = 10;
const BACKGROUND: Colour = [0xff, 0xff, 0xff];
const AXIS: Colour = [0x60, 0x60, 0x60];

pub type Colour = [u8; 3];

#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    #[error("A chart needs 1 to 64 numbers, not {0}.")]
    Count(usize),
    #[error("The image could not be encoded: {0}")]
    Png(#[from] png::EncodingError),
}

pub fn parse_colour(text: &str) -> Option<Colour> {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6 && digits.is_ascii())?;
    let channel = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    Some([channel(0)?, channel(2)?, channel(4)?])
}

pub fn bars(values: &[f64], colour: Colour) -> Result<Vec<u8>, ChartError> {
    if values.is_empty() || values.len() > 64 {
        return Err(ChartError::Count(values.len()));
    }
    let mut canvas = Canvas::new();
    let top = values.iter().copied().fold(0.0, f64::max);
    let bottom = values.iter().copied().fold(0.0, f64::min);
    // Halved before the subtraction, so that two huge numbers don't overflow.
    let span = (top / 2.0 - bottom / 2.0).max(f64::MIN_POSITIVE);
    let plot_height = HEIGHT - 2 * MARGIN;
    let row = |value: f64| MARGIN + ((top / 2.0 - value / 2.0) / span * plot_height as f64) as usize;
    let baseline = row(0.0);
    let slot = (WIDTH - 2 * MARGIN) / values.len();
    let gap = slot / 5;
    for (index, value) in values.iter().enumerate() {
        let left = MARGIN + index * slot + gap / 2;
        let end = row(*value);
        canvas.fill(left..left + slot - gap, end.min(baseline)..end.max(baseline), colour);
    }
    canvas.fill(MARGIN..WIDTH - MARGIN, baseline..baseline + 1, AXIS);
    canvas.encode()
}

struct Canvas(Vec<Colour>);

impl Canvas {
    fn new() -> Self {
        Self(vec![BACKGROUND; WIDTH * HEIGHT])
    }

    fn fill(&mut self, columns: std::ops::Range<usize>, rows: std::ops::Range<usize>, colour: Colour) {
        for row in rows {
            self.0[row * WIDTH..][columns.clone()].fill(colour);
        }
    }

    fn encode(&self) -> Result<Vec<u8>, ChartError> {
        let mut image = Vec::new();
        let mut encoder = png::Encoder::new(&mut image, WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.0.as_flattened())?;
        writer.finish()?;
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_small_png_images() {
        for values in [&[1.0][..], &[0.0, 0.0], &[-3.0, 5.0, 2.5], &[f64::MAX, f64::MIN], &[7.0; 64]] {
            let image = bars(values, BLUE).expect("valid chart");
            assert!(image.starts_with(b"\x89PNG"), "{values:?}");
            assert!(image.len() < 20_000, "{values:?}: {}", image.len());
        }
        assert!(bars(&[], BLUE).is_err() && bars(&[1.0; 65], BLUE).is_err());
    }

    #[test]
    fn colours_are_six_hexadecimal_digits() {
        assert_eq!(parse_colour("#2b7bba"), Some(BLUE));
        for wrong in ["2b7bba", "#2b7bb", "#2b7bbg", "#ääb"] {
            assert_eq!(parse_colour(wrong), None, "{wrong}");
        }
    }
}
