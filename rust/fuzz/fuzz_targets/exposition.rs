//! Any pages of workers, with a zero byte between them: a page of which a scraper can read every line, about as long as
//! they are, with each family's head once and none of the router's own families.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use sglang_omni_router::fuzzing::joined_metrics;

const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

/// The rest of a line after a metric's or a label's name.
fn after_name(line: &str) -> Option<&str> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let end = end.unwrap_or(line.len());
    let begins = line.starts_with(|c: char| !c.is_ascii_digit());
    (end > 0 && begins).then(|| &line[end..])
}

/// The rest after labels, of which the brace is open.
fn after_labels(mut line: &str) -> Option<&str> {
    loop {
        line = line.trim_start();
        if let Some(rest) = line.strip_prefix('}') {
            return Some(rest);
        }
        let value = after_name(line)?.trim_start().strip_prefix("=\"")?;
        let mut is_escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })?;
        line = value[end + 1..].trim_start();
        line = line
            .strip_prefix(',')
            .or(line.starts_with('}').then_some(line))?;
    }
}

/// True if it is `name{label="value",...} value`, with a time in milliseconds or without one.
fn is_sample(line: &str) -> bool {
    let labels = after_name(line).and_then(|rest| rest.strip_prefix('{'));
    let Some(rest) = labels.and_then(after_labels) else {
        return false;
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let time = words.get(1).map(|time| time.parse::<i64>().is_ok());
    words.len() <= 2
        && words
            .first()
            .is_some_and(|value| value.parse::<f64>().is_ok())
        && time != Some(false)
}

fuzz_target!(|text: &str| {
    let pages: Vec<&str> = text.split('\0').collect();
    let joined = joined_metrics(&pages);
    let lines = text.split(['\0', '\n']).count();
    assert!(joined.len() <= text.len() + lines * "{worker=\"4096\",exported_}\n".len());
    let mut heads = HashSet::new();
    for line in joined.lines() {
        assert!(!line.starts_with("sglang_omni_router_"), "{line}");
        if let Some(head) = line.strip_prefix("# ") {
            let mut words = head.splitn(3, ' ');
            let (kind, name) = (words.next(), words.next().unwrap_or_default());
            assert_eq!(after_name(name), Some(""), "{line:?}");
            let text = words.next().unwrap_or_default().trim_end();
            assert!(kind == Some("HELP") || TYPES.contains(&text), "{line:?}");
            assert!(heads.insert((kind, name)), "twice: {line:?}");
        } else {
            assert!(is_sample(line), "{line:?}");
        }
    }
});
