//! Writes Prometheus' text format.

use std::fmt::{Display, Write};

use crate::base::histogram::{BOUNDS_US, Snapshot};

/// Begins the names of the router's own metrics.
pub const OWN_PREFIX: &str = "sglang_omni_router_";

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The lines before a metric's series.
pub fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP sglang_omni_router_{name} {help}\n# TYPE sglang_omni_router_{name} {kind}"
    );
}

/// One sample. `labels` is empty or `{name="value"}`.
pub fn sample(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(out, "sglang_omni_router_{name}{labels} {value}");
}

/// One series of a histogram, if anything was observed.
pub fn histogram(out: &mut String, name: &str, label: &str, value: &str, read: &Snapshot) {
    if read.count() == 0 {
        return;
    }
    let mut below = 0;
    let bounds = BOUNDS_US
        .iter()
        .map(|&bound| (bound as f64 / 1e6).to_string());
    for (count, bound) in read.counts.iter().zip(bounds.chain(["+Inf".to_owned()])) {
        below += count;
        let _ = writeln!(
            out,
            "sglang_omni_router_{name}_bucket{{{label}=\"{value}\",le=\"{bound}\"}} {below}"
        );
    }
    let _ = writeln!(
        out,
        "sglang_omni_router_{name}_sum{{{label}=\"{value}\"}} {}\nsglang_omni_router_{name}_count{{{label}=\"{value}\"}} {below}",
        read.sum_us as f64 / 1e6
    );
}

/// A label's value, escaped.
pub fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut read = Snapshot::default();
        (read.counts[0], read.counts[17], read.sum_us) = (2, 1, 2_500_000);
        let mut out = String::new();
        histogram(&mut out, "t", "route", "r", &read);
        assert!(
            out.starts_with("sglang_omni_router_t_bucket{route=\"r\",le=\"0.001\"} 2\n"),
            "{out}"
        );
        assert!(
            out.contains("le=\"300\"} 2\n") && out.contains("le=\"+Inf\"} 3\n"),
            "{out}"
        );
        assert!(
            out.ends_with("_sum{route=\"r\"} 2.5\nsglang_omni_router_t_count{route=\"r\"} 3\n"),
            "{out}"
        );
    }
}
