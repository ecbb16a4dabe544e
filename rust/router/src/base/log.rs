//! Writes log lines to standard error, on a thread of its own and from a bounded queue: if a terminal or a pipe
//! does not keep up, lines are dropped and counted, and no request waits. Two routers in one process have a log
//! each: every thread of a router logs to `Log::dispatch`.

use std::fmt::{self, Debug};
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format};
use tracing_subscriber::registry::LookupSpan;

/// Lines that may wait for the writer.
const QUEUE: usize = 4096;

/// Bytes of lines that are written at once.
const BATCH: usize = 64 * 1024;

/// How long the end of the router waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    #[serde(alias = "warning")]
    #[value(alias = "warning")]
    Warn,
    Error,
}

impl From<Level> for tracing::Level {
    fn from(level: Level) -> tracing::Level {
        match level {
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
            Level::Error => tracing::Level::ERROR,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `TIME LEVEL MESSAGE name=value ...`
    Text,
    /// One JSON object a line: `ts`, `level`, `msg`, and the fields.
    Json,
}

/// The log of one router.
pub struct Log {
    /// Takes lines of the log's level and above.
    pub dispatch: Dispatch,
    /// Counts lines dropped because the writer did not keep up.
    pub losses: ErrorCounter,
    writer: Option<WorkerGuard>,
}

impl Log {
    /// Starts the writer's thread.
    pub fn start(level: Level, format: LogFormat) -> Log {
        let (lines, writer) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUE)
            .thread_name("router-log")
            .finish(BufWriter::with_capacity(BATCH, StandardError));
        Log {
            losses: lines.error_counter(),
            dispatch: dispatch(level, format, lines),
            writer: Some(writer),
        }
    }
}

impl Drop for Log {
    /// Waits at most `LAST_LINES` for the last lines to be written: a reader that stands still must not hold up the
    /// router's end. Dropping `WorkerGuard` may print to standard output, which may have the same reader.
    fn drop(&mut self) {
        let writer = self.writer.take();
        let (alive, ended) = channel::<()>();
        let wait = thread::Builder::new().spawn(move || {
            drop(writer);
            drop(alive);
        });
        if wait.is_ok() {
            let _ = ended.recv_timeout(LAST_LINES);
        }
    }
}

/// There is no place to report that it is closed.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn dispatch<W>(level: Level, format: LogFormat, writer: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(level))
        .event_format(format)
        .with_writer(writer);
    subscriber.into()
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut out: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::with_capacity(32);
        SystemTime.format_time(&mut format::Writer::new(&mut time))?;
        time.truncate("2024-02-29T12:34:56.007".len());
        let level = event.metadata().level().as_str();
        match self {
            LogFormat::Text => write!(out, "{time}Z {level:5}")?,
            LogFormat::Json => {
                let level = level.to_ascii_lowercase();
                write!(out, "{{\"ts\":\"{time}Z\",\"level\":\"{level}\"")?;
            }
        }
        let mut values = Values(vec![Value::Null; event.metadata().fields().len()]);
        event.record(&mut values);
        for (field, value) in event.metadata().fields().iter().zip(values.0) {
            match (self, field.name(), value) {
                (LogFormat::Text, "message", Value::String(text)) => write!(out, " {text}"),
                (LogFormat::Text, name, Value::String(text)) if is_plain(&text) => {
                    write!(out, " {name}={text}")
                }
                (LogFormat::Text, name, value) => write!(out, " {name}={value}"),
                (LogFormat::Json, "message", value) => write!(out, ",\"msg\":{value}"),
                (LogFormat::Json, name, value) => write!(out, ",\"{name}\":{value}"),
            }?;
        }
        out.write_str(match self {
            LogFormat::Text => "\n",
            LogFormat::Json => "}\n",
        })
    }
}

/// Whether a text needs no quotes as the value of a field.
fn is_plain(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'=';
    !text.is_empty() && text.bytes().all(is_plain)
}

/// The values of an event's fields, in their order. One without a value is null; one that is neither a u64 nor
/// an f64 is a string.
struct Values(Vec<Value>);

impl Visit for Values {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0[field.index()] = value.into();
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0[field.index()] = value.into();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0[field.index()] = value.into();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0[field.index()] = format!("{value:?}").into();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::dispatcher::with_default;

    use super::*;

    fn logged(level: Level, format: LogFormat, log: impl FnOnce()) -> String {
        let (read, write) = io::pipe().unwrap();
        with_default(&dispatch(level, format, Mutex::new(write)), log);
        io::read_to_string(read).unwrap()
    }

    fn worker_is_down() {
        let (worker, why) = ("http://a:1", "reset\nby \"peer\"");
        let waited: Option<u64> = None;
        tracing::warn!(worker, why, tries = 3_u64, waited, "worker is down");
    }

    #[test]
    fn text_quotes_what_would_break_the_line() {
        let line = logged(Level::Info, LogFormat::Text, worker_is_down);
        let (time, rest) = line.split_at("2024-02-29T12:34:56.007".len());
        assert_eq!(
            rest,
            "Z WARN  worker is down worker=http://a:1 why=\"reset\\nby \\\"peer\\\"\" tries=3 waited=null\n"
        );
        let shape = |b: u8| if b.is_ascii_digit() { '0' } else { b.into() };
        let shape: String = time.bytes().map(shape).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let line = logged(Level::Info, LogFormat::Json, worker_is_down);
        assert_eq!(line.matches('\n').count(), 1);
        let (_, rest) = line.split_once("Z\",").unwrap();
        assert_eq!(
            rest,
            "\"level\":\"warn\",\"msg\":\"worker is down\",\"worker\":\"http://a:1\",\
             \"why\":\"reset\\nby \\\"peer\\\"\",\"tries\":3,\"waited\":null}\n"
        );
        let read: Value = serde_json::from_str(&line).unwrap();
        assert!(read["ts"].is_string());
    }

    #[test]
    fn each_log_has_the_lines_of_its_level_and_no_others() {
        let mut below = String::new();
        let above = logged(Level::Warn, LogFormat::Text, || {
            tracing::info!("below the level");
            below = logged(Level::Debug, LogFormat::Text, || tracing::debug!("another"));
            tracing::error!("kept");
        });
        assert!(above.ends_with("Z ERROR kept\n") && above.lines().count() == 1);
        assert!(below.ends_with("Z DEBUG another\n") && below.lines().count() == 1);
    }
}
