//! Writes log lines to standard error, on a thread of its own and from a bounded queue: if a terminal or a pipe
//! does not keep up, lines are dropped and counted, and no request waits.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Lines that may wait for the writer.
const QUEUE: usize = 4096;

/// How long the end of the router waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    #[serde(alias = "warning")]
    #[value(alias = "warning")]
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
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

/// The fields of a line, after its message. Values that are not strings are JSON numbers, booleans or null.
pub type Fields = Vec<(&'static str, Value)>;

/// Makes the fields of a line; runs on the writer's thread.
type MakeFields = Box<dyn FnOnce() -> Fields + Send>;

struct Line {
    at: SystemTime,
    level: Level,
    message: Cow<'static, str>,
    fields: MakeFields,
}

/// Takes lines, of its level and above.
pub struct Log {
    level: Level,
    /// None is the end.
    lines: SyncSender<Option<Line>>,
    dropped: AtomicU64,
}

/// The thread that writes.
pub struct Writer(JoinHandle<()>);

impl Log {
    /// Starts the writer's thread, which ends with `Writer::finish`.
    pub fn start(level: Level, format: LogFormat) -> io::Result<(Log, Writer)> {
        let (lines, waiting) = sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("router-log".to_owned())
            .spawn(move || write_all(&waiting, format))?;
        let log = Log {
            level,
            lines,
            dropped: AtomicU64::new(0),
        };
        Ok((log, Writer(thread)))
    }

    #[cfg(test)]
    pub fn nowhere() -> Log {
        Log {
            level: Level::Error,
            lines: sync_channel(0).0,
            dropped: AtomicU64::new(0),
        }
    }

    /// Logs a line about the router itself; its fields are strings.
    pub fn event(
        &self,
        level: Level,
        message: impl Into<Cow<'static, str>>,
        fields: &[(&'static str, &dyn Display)],
    ) {
        if level < self.level {
            return;
        }
        let text = |value: &dyn Display| Value::String(value.to_string());
        let fields: Fields = fields
            .iter()
            .map(|&(name, value)| (name, text(value)))
            .collect();
        self.put(level, message, Box::new(|| fields));
    }

    pub fn info(
        &self,
        message: impl Into<Cow<'static, str>>,
        fields: &[(&'static str, &dyn Display)],
    ) {
        self.event(Level::Info, message, fields);
    }

    pub fn warn(
        &self,
        message: impl Into<Cow<'static, str>>,
        fields: &[(&'static str, &dyn Display)],
    ) {
        self.event(Level::Warn, message, fields);
    }

    /// Logs a line whose fields the writer's thread makes.
    pub fn put(&self, level: Level, message: impl Into<Cow<'static, str>>, fields: MakeFields) {
        if level < self.level {
            return;
        }
        let line = Line {
            at: SystemTime::now(),
            level,
            message: message.into(),
            fields,
        };
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Some(line)) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Lines dropped because the writer did not keep up.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Writer {
    /// Waits at most `LAST_LINES` for the last lines to be written: a reader that stands still must not hold up the
    /// router's end.
    pub fn finish(self, log: &Log) {
        // If the queue is full, no line of it will be read in time.
        let _ = log.lines.try_send(None);
        let deadline = Instant::now() + LAST_LINES;
        while !self.0.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write_all(waiting: &Receiver<Option<Line>>, format: LogFormat) {
    let mut out = String::new();
    let mut is_over = false;
    while !is_over {
        let Ok(first) = waiting.recv() else {
            return;
        };
        for line in std::iter::once(first).chain(waiting.try_iter().take(256)) {
            match (line, format) {
                (Some(line), LogFormat::Text) => write_text(&mut out, line),
                (Some(line), LogFormat::Json) => write_json(&mut out, line),
                (None, _) => is_over = true,
            }
        }
        // There is no place to report that standard error is closed.
        let _ = io::stderr().write_all(out.as_bytes());
        out.clear();
    }
}

fn write_text(out: &mut String, line: Line) {
    let _ = write!(
        out,
        "{} {:5} {}",
        timestamp(line.at),
        line.level.name().to_ascii_uppercase(),
        line.message
    );
    for (name, value) in (line.fields)() {
        let is_plain = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|b| b.is_ascii_graphic() && b != b'"' && b != b'=')
        };
        let _ = match &value {
            Value::String(text) if is_plain(text) => write!(out, " {name}={text}"),
            value => write!(out, " {name}={value}"),
        };
    }
    out.push('\n');
}

fn write_json(out: &mut String, line: Line) {
    let _ = write!(
        out,
        "{{\"ts\":\"{}\",\"level\":\"{}\",\"msg\":{}",
        timestamp(line.at),
        line.level.name(),
        Value::from(&*line.message)
    );
    for (name, value) in (line.fields)() {
        let _ = write!(out, ",\"{name}\":{value}");
    }
    out.push_str("}\n");
}

/// RFC 3339 in UTC, to the millisecond.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    loop {
        let length = 365 + u64::from(is_leap(year));
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: Fields) -> Line {
        Line {
            at: UNIX_EPOCH + Duration::from_millis(1_709_210_096_007),
            level: Level::Warn,
            message: "worker is down".into(),
            fields: Box::new(|| fields),
        }
    }

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_453), (2025, 12, 31));
        assert_eq!(civil(20_454), (2026, 1, 1));
    }

    #[test]
    fn text_quotes_what_would_break_the_line() {
        let mut out = String::new();
        let fields = vec![
            ("worker", Value::from("http://a:1")),
            ("why", Value::from("reset\nby \"peer\"")),
            ("tries", Value::from(3)),
        ];
        write_text(&mut out, line(fields));
        assert_eq!(
            out,
            "2024-02-29T12:34:56.007Z WARN  worker is down worker=http://a:1 why=\"reset\\nby \\\"peer\\\"\" tries=3\n"
        );
    }

    #[test]
    fn json_is_one_object_a_line() {
        let mut out = String::new();
        write_json(&mut out, line(vec![("why", Value::from("a\n\"b\""))]));
        assert_eq!(out.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(read["ts"], "2024-02-29T12:34:56.007Z");
        assert_eq!(
            (&read["level"], &read["msg"]),
            (&Value::from("warn"), &Value::from("worker is down"))
        );
        assert_eq!(read["why"], "a\n\"b\"");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (lines, _waiting) = sync_channel(1);
        let log = Log {
            level: Level::Info,
            lines,
            dropped: AtomicU64::new(0),
        };
        log.event(Level::Debug, "below the level", &[]);
        log.info("kept", &[]);
        log.info("lost", &[("n", &1)]);
        assert_eq!(log.dropped(), 1);
    }
}
