//! A policy's own metrics; the router gives them a prefix and a format.

/// One metric; `name` has no prefix.
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub value: MetricValue,
}

pub enum MetricValue {
    Counter(u64),
    Gauge(u64),
    /// One value for each worker, by slot; workers with slots beyond the end have 0.
    GaugeBySlot(Vec<u64>),
}
