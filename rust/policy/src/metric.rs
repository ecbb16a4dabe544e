//! A policy's own metrics, before they have a format.

/// A figure and what it says; `name` has no prefix.
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub value: Value,
}

pub enum Value {
    Counter(u64),
    Gauge(u64),
    /// One a worker, by slot; workers whose slots are beyond the end have 0.
    GaugeBySlot(Vec<u64>),
}
