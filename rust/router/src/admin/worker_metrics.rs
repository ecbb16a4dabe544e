//! The workers' own metrics, each series labelled with its worker, for `/metrics` of the router.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use hyper::header::HeaderMap;

use crate::base::page::Page;
use crate::base::prometheus::{OWN_PREFIX, escaped};
use crate::fleet::fan_out::{Question, ask};
use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::{Fleet, Worker};
use crate::upstream::pool::Pool;

/// Asks every worker that can be reached for its metrics. A worker without any, or that is late, has no series.
/// `headers`: those of the scraper's request.
pub async fn gather(
    pool: &Rc<Pool>,
    fleet: &Fleet,
    headers: &HeaderMap,
    sees_urls: bool,
) -> Families {
    let asked = |worker: &&Arc<Worker>| {
        !worker.flags.is(Demotion::Down) && !worker.flags.is(Demotion::Loop)
    };
    let workers: Vec<_> = fleet.read().iter().filter(asked).cloned().collect();
    let question = Question::get("/metrics").asked_by(headers);
    let mut families = Families::default();
    for answer in ask(pool, workers, &question).await {
        if let Some(text) = answer.ok().and_then(|body| std::str::from_utf8(body).ok()) {
            families.add(&answer.worker.name(sees_urls), text);
        }
    }
    families
}

const HELP: &str = "# HELP ";
const TYPE: &str = "# TYPE ";

/// Families of several pages, each with the series of all pages together, as the format demands.
#[derive(Default)]
pub struct Families {
    /// In the order in which they were first seen.
    listed: Vec<Family>,
    places: HashMap<String, usize>,
}

#[derive(Default)]
struct Family {
    /// The lines of `HELP` and `TYPE`.
    head: String,
    samples: String,
}

impl Families {
    /// Adds a worker's page. Metrics of a worker that is a router itself stay there.
    pub fn add(&mut self, worker: &str, page: &str) {
        let label = format!("worker=\"{}\"", escaped(worker));
        let mut current = None;
        for line in page.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let kind = match words.next() {
                    Some("HELP") => HELP,
                    Some("TYPE") => TYPE,
                    _ => continue,
                };
                let name = words.next().unwrap_or_default();
                if !is_head(kind, name, words.next()) {
                    continue;
                }
                current = self.place(name);
                let family = current.map(|place| &mut self.listed[place]);
                // Of the first worker that has it, alone: a family may have no sample there yet.
                if let Some(family) = family
                    && !family.head.lines().any(|known| known.starts_with(kind))
                {
                    let _ = writeln!(family.head, "{line}");
                }
                continue;
            }
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            let (name, rest) = line.split_at(end);
            if name.starts_with(OWN_PREFIX) || !is_sample(name, rest) {
                continue;
            }
            let Some(place) = current.or_else(|| self.place(name)) else {
                continue;
            };
            let samples = &mut self.listed[place].samples;
            let _ = match rest.strip_prefix('{') {
                Some(labels) if labels.starts_with('}') => {
                    writeln!(samples, "{name}{{{label}{labels}")
                }
                Some(labels) => writeln!(samples, "{name}{{{label},{}", exported(labels)),
                None => writeln!(samples, "{name}{{{label}}}{rest}"),
            };
        }
    }

    fn place(&mut self, name: &str) -> Option<usize> {
        if name.starts_with(OWN_PREFIX) {
            return None;
        }
        if let Some(&place) = self.places.get(name) {
            return Some(place);
        }
        self.listed.push(Family::default());
        self.places.insert(name.to_owned(), self.listed.len() - 1);
        Some(self.listed.len() - 1)
    }

    pub fn write(self, page: &mut Page) {
        for Family { head, samples } in self.listed {
            if !samples.is_empty() {
                page.push(&head);
                page.push(&samples);
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(is_part)
}

/// True if what follows `# TYPE` or `# HELP` is a metric's name and, of the former, a type of metric.
fn is_head(kind: &str, name: &str, text: Option<&str>) -> bool {
    const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];
    is_name(name) && (kind == HELP || text.is_some_and(|text| TYPES.contains(&text.trim_end())))
}

/// True if a line is a sample. A worker may answer with any page, and one line that is none makes a scraper refuse
/// the whole page.
fn is_sample(name: &str, rest: &str) -> bool {
    let after = match rest.strip_prefix('{') {
        Some(labels) => after_labels(labels),
        None => Some(rest),
    };
    let mut words = after.unwrap_or_default().split_whitespace();
    let (value, time) = (words.next(), words.next());
    is_name(name)
        && value.is_some_and(|value| value.parse::<f64>().is_ok())
        && time.is_none_or(|time| time.parse::<i64>().is_ok())
        && words.next().is_none()
}

/// What follows the brace that ends the labels; None if they are none.
fn after_labels(mut labels: &str) -> Option<&str> {
    loop {
        labels = labels.trim_start();
        if let Some(after) = labels.strip_prefix('}') {
            return Some(after);
        }
        let (name, value) = labels.split_once("=\"")?;
        if !is_name(name.trim_end()) || name.contains(':') {
            return None;
        }
        let after = value[end_of_value(value)? + 1..].trim_start();
        labels = match after.strip_prefix(',') {
            Some(next) => next,
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// Where the quote is that ends a label's value; quotes in it have a backslash before them.
fn end_of_value(value: &str) -> Option<usize> {
    let mut is_escaped = false;
    value.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    })
}

/// The labels with one called `worker` renamed, as Prometheus itself does.
fn exported(labels: &str) -> String {
    let (mut rest, mut name_at) = (labels, 0);
    // Each turn reads a name and its value.
    while let Some((name, value)) = rest.split_once("=\"") {
        if name.trim() == "worker" {
            let (before, label) = labels.split_at(name_at);
            return format!("{before}exported_{}", label.trim_start());
        }
        let end = end_of_value(value);
        let Some(after) = end.and_then(|end| value[end + 1..].trim_start().strip_prefix(','))
        else {
            break;
        };
        name_at = labels.len() - after.len();
        rest = after;
    }
    labels.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP up Whether.\n# TYPE up gauge\nup 1\n# HELP sglang_omni_router_x Its own.\n\
                        # TYPE sglang_omni_router_x counter\nsglang_omni_router_x 3\n# HELP t T.\n# TYPE t histogram\n\
                        t_bucket{path=\"/a\",le=\"1\"} 2\nt_sum{path=\"/a\"} 0.5\nt_count{path=\"/a\"} 2\n";

    fn text_of(families: Families) -> String {
        let mut page = Page::default();
        families.write(&mut page);
        page.to_string()
    }

    #[test]
    fn series_of_all_workers_stand_together_under_one_head() {
        let mut families = Families::default();
        families.add("0", PAGE);
        families.add("b\"1", PAGE);
        let text = text_of(families);
        assert!(
            text.starts_with(
                "# HELP up Whether.\n# TYPE up gauge\nup{worker=\"0\"} 1\nup{worker=\"b\\\"1\"} 1\n# HELP t T.\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("t_bucket{worker=\"0\",path=\"/a\",le=\"1\"} 2\n"),
            "{text}"
        );
        assert!(!text.contains("router_x"), "{text}");
        assert_eq!(text.matches("# TYPE t histogram").count(), 1);
    }

    #[test]
    fn a_family_that_one_worker_has_no_sample_of_has_one_head() {
        let head = "# HELP s Sockets.\n# TYPE s counter\n";
        let page = format!("{head}s{{kind=\"a\"}} 1\n");
        for pages in [[head, &page], [&page, head]] {
            let mut families = Families::default();
            for (number, page) in pages.iter().enumerate() {
                families.add(&number.to_string(), page);
            }
            let text = text_of(families);
            assert!(text.starts_with(&format!("{head}s{{worker=")), "{text}");
            assert_eq!(text.lines().count(), 3, "{text}");
        }
    }

    #[test]
    fn what_is_no_sample_goes() {
        let mut families = Families::default();
        families.add(
            "0",
            "ok\n<html>1</html>\na{b=\"c\"}\nd +Inf 17\ne NaN\nf -1.5e-3\n # g 1\n",
        );
        assert_eq!(
            text_of(families),
            "d{worker=\"0\"} +Inf 17\ne{worker=\"0\"} NaN\nf{worker=\"0\"} -1.5e-3\n"
        );
    }

    /// Each would make a scraper refuse the other workers' metrics too.
    #[test]
    fn labels_times_and_heads_that_are_none_go() {
        let mut families = Families::default();
        families.add(
            "0",
            "a{b} 1\nc{d=\"e} 1\nf{g=\"h\"i=\"j\"} 1\nk{1l=\"m\"} 1\n2n 1\no 1 p\nq 1 2 3\n# TYPE r s\n\
             # HELP 3t T.\nu{v=\"w\", x=\"}\",} 1\ny {z=\"a\"} 1\n",
        );
        assert_eq!(text_of(families), "u{worker=\"0\",v=\"w\", x=\"}\",} 1\n");
    }

    #[test]
    fn a_label_of_the_same_name_is_renamed() {
        let mut families = Families::default();
        families.add(
            "0",
            "a{worker=\"x\"} 1\nb{c=\"d\" , worker=\"x\"} 2\ne{} 3\n",
        );
        assert_eq!(
            text_of(families),
            "a{worker=\"0\",exported_worker=\"x\"} 1\nb{worker=\"0\",c=\"d\" ,exported_worker=\"x\"} 2\ne{worker=\"0\"} 3\n"
        );
        // What looks like one within a value is none.
        let quoted = r#"c="\",worker=\"",d="\\""#;
        assert_eq!(exported(&format!("{quoted}}} 1")), format!("{quoted}}} 1"));
        assert_eq!(
            exported(&format!("{quoted},worker=\"x\"}} 1")),
            format!("{quoted},exported_worker=\"x\"}} 1")
        );
    }
}
