//! The figures that a run must have. A path without one fails the run: otherwise a benchmark that no longer measures
//! anything would go unnoticed.

use anyhow::ensure;

#[derive(Default)]
pub struct Figures {
    missing: Vec<String>,
}

impl Figures {
    /// Requires a figure above zero for this name.
    pub fn require(&mut self, name: impl Into<String>, figure: Option<f64>) {
        if !figure.is_some_and(|figure| figure.is_finite() && figure > 0.0) {
            self.missing.push(name.into());
        }
    }

    pub fn ensure_complete(self) -> anyhow::Result<()> {
        ensure!(self.missing.is_empty(), "no figure: {}", self.missing.join(", "));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_figure_fails_with_its_name() {
        let mut figures = Figures::default();
        for (name, figure) in [("a", Some(1.0)), ("b", None), ("c", Some(0.0)), ("d", Some(f64::NAN))] {
            figures.require(name, figure);
        }
        assert_eq!(figures.ensure_complete().unwrap_err().to_string(), "no figure: b, c, d");
        assert!(Figures::default().ensure_complete().is_ok());
    }
}
