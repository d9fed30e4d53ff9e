//! Reading an exposition of metrics.

use std::collections::BTreeMap;

/// All samples of one exposition.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    by_series: BTreeMap<String, f64>,
}

impl Samples {
    /// Reads Prometheus text; lines that are no samples are skipped.
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            // The value is what follows the last space outside the labels; no timestamp is expected.
            let (series, value) = line.trim().rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self { by_series: samples.collect() }
    }

    /// The value of exactly this series: `name` or `name{label="value"}` as exposed.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.by_series.get(series).copied()
    }

    /// The sum over all series of `name` whose labels contain each of `labels` (`label="value"`).
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_name = self.by_series.iter().filter(|(series, _)| {
            let (exposed, shown) = series.split_once('{').unwrap_or((series.as_str(), ""));
            exposed == name && labels.iter().all(|label| shown.contains(label))
        });
        of_name.map(|(_, value)| value).sum()
    }

    /// The names of all series, with labels, in order.
    pub fn series(&self) -> impl Iterator<Item = &str> {
        self.by_series.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_series_and_summed_by_label() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"a b\"} 2\na{x=\"2\"} 3.5\nb 7\n";
        let samples = Samples::parse(text);
        assert_eq!(samples.get("b"), Some(7.0));
        assert_eq!(samples.get("a{x=\"1\",y=\"a b\"}"), Some(2.0));
        assert_eq!(samples.sum("a", &[]), 5.5);
        assert_eq!(samples.sum("a", &["x=\"2\""]), 3.5);
        assert_eq!(samples.series().count(), 3);
    }
}
