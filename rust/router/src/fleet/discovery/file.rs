//! Reads a file that lists workers: one URL a line, or a list in JSON or YAML.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::upstream::worker_url::WorkerUrl;

/// Tells one version of a file from another: inode, length and time of change.
type FileVersion = Option<(u64, u64, i64, i64)>;

pub struct WorkersFile {
    path: PathBuf,
    /// The version that was read last, and the one that was there when it was last looked at.
    read: FileVersion,
    seen: FileVersion,
}

impl WorkersFile {
    pub fn new(path: PathBuf) -> WorkersFile {
        WorkersFile {
            path,
            read: None,
            seen: None,
        }
    }

    /// The URLs in the file, as `WorkerUrl` spells them.
    pub fn read(&mut self) -> Result<Vec<String>, String> {
        self.read = stamp(&self.path);
        self.seen = self.read;
        let text = fs::read_to_string(&self.path).map_err(|error| self.unreadable(&error))?;
        parse(&text).map_err(|why| format!("{}: {why}", self.path.display()))
    }

    /// The URLs in the file, if it may have changed and is not being written right now, or if it was `asked` for.
    pub fn changes(&mut self, asked: bool) -> Option<Result<Vec<String>, String>> {
        let now = stamp(&self.path);
        let is_settled = now == std::mem::replace(&mut self.seen, now);
        (asked || (is_settled && now != self.read)).then(|| self.read())
    }

    fn unreadable(&self, error: &io::Error) -> String {
        format!("{} cannot be read: {error}", self.path.display())
    }
}

fn stamp(path: &Path) -> FileVersion {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
}

/// Refuses empty text: a truncated file is more likely than an empty fleet, which is written `[]`.
fn parse(text: &str) -> Result<Vec<String>, String> {
    if text.trim().is_empty() {
        return Err("the file is empty; write [] for no workers".to_owned());
    }
    let (place, given): (&str, Vec<String>) = match text.trim_start().starts_with('[') {
        true => {
            let list = serde_json::from_str(text);
            let list = list.map_err(|error| format!("is not a JSON list of URLs: {error}"))?;
            ("entry", list)
        }
        false => ("line", text.lines().map(url_in).collect()),
    };
    let is_given = |(_, url): &(usize, String)| place == "entry" || !url.is_empty();
    let mut urls: Vec<String> = Vec::new();
    for (index, url) in given.into_iter().enumerate().filter(is_given) {
        let url: WorkerUrl = url
            .parse()
            .map_err(|error| format!("{place} {}: {error}", index + 1))?;
        let url = url.to_string();
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    Ok(urls)
}

/// The URL in a line, which is `- "URL"` in a YAML list; empty if the line has only a comment.
fn url_in(line: &str) -> String {
    let line = line.trim();
    let line = line.strip_prefix("- ").unwrap_or(line);
    let line = line.split('#').next().unwrap_or_default();
    line.trim().trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_yaml_and_json_are_read_alike() {
        for text in [
            "http://a:1\nhttp://b:2/\n",
            "# replicas\n\nhttp://a:1  # the first\r\n  http://b:2\nhttp://a:1",
            "- http://a:1\n- \"http://b:2\"\n",
            "[\"http://a:1\",\n \"http://b:2\"]",
        ] {
            assert_eq!(parse(text).unwrap(), ["http://a:1", "http://b:2"], "{text}");
        }
        assert!(parse("[]").unwrap().is_empty());
        assert!(parse("# none for now").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_placed() {
        for (text, words) in [
            ("", "empty"),
            (" \n", "empty"),
            ("http://a:1\n\nb:2\n", "line 3: worker url \"b:2\""),
            ("[\"http://a:1\", \"b\"]", "entry 2: worker url \"b\""),
            ("[\"http://a:1\"", "not a JSON list"),
            ("[1]", "not a JSON list"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(words), "{text:?}: {why}");
        }
    }

    #[test]
    fn a_change_counts_once_it_has_settled() {
        let path = std::env::temp_dir().join(format!("workers-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("http://a:1\n");
        let mut file = WorkersFile::new(path.clone());
        assert_eq!(file.read().unwrap(), ["http://a:1"]);
        assert_eq!(file.changes(false), None);

        write("http://a:1\nhttp://b:2\n");
        assert_eq!(file.changes(false), None);
        write("http://a:1\nhttp://b:2\nhttp://c:3\n");
        assert_eq!(file.changes(false), None);
        assert_eq!(file.changes(false).unwrap().unwrap().len(), 3);
        assert_eq!(file.changes(false), None);

        fs::remove_file(&path).unwrap();
        assert_eq!(file.changes(false), None);
        let why = file.changes(false).unwrap().unwrap_err();
        assert!(why.contains("cannot be read"), "{why}");
        assert_eq!(file.changes(false), None);
        write("http://b:2\n");
        assert_eq!(file.changes(true).unwrap().unwrap(), ["http://b:2"]);
        fs::remove_file(&path).unwrap();
    }
}
