//! Counts the values of a JSON text in one pass, before an interpreter builds them.
//!
//! The values cost an interpreter far more memory than their bytes, so a server must count them first. The text need
//! not be valid: a parser that stops at the first mistake has built no more than was counted up to there.

use memchr::memchr2;
use pyo3::prelude::*;

/// Names of values that hold media, and of lists of such values: long texts, which cost no more than their bytes.
const MEDIA: [&[u8]; 2] = [b"data", b"url"];
const MEDIA_LISTS: [&[u8]; 3] = [b"images", b"audios", b"videos"];

struct JsonLimits {
    text: usize,
    values: usize,
    parts: usize,
    names: usize,
    depth: usize,
}

/// A list or object that is not closed yet.
struct Level {
    is_object: bool,
    /// Whether the next string is a name: it is at an object's beginning and after each of its commas.
    awaits_name: bool,
    names: usize,
    /// Whether the next text is a medium: in an object the one with such a name, in a list of media any.
    is_media: bool,
    /// Whether the next value, if it is a list, is a list of media.
    is_media_list: bool,
}

/// The name of the first limit that `bytes` exceed.
fn excess(bytes: &[u8], limits: &JsonLimits) -> Option<&'static str> {
    let mut levels: Vec<Level> = Vec::with_capacity(limits.depth.min(64));
    let (mut values, mut parts, mut media) = (0usize, 0usize, 0usize);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => {
                let (end, escapes) = end_of_string(bytes, at);
                let inside = &bytes[at.min(end)..end];
                at = end + 1;
                match levels.last_mut() {
                    Some(level) if level.awaits_name => {
                        level.names += 1;
                        if level.names > limits.names {
                            return Some("names");
                        }
                        level.awaits_name = false;
                        level.is_media = MEDIA.contains(&inside);
                        level.is_media_list = MEDIA_LISTS.contains(&inside);
                        continue;
                    }
                    // An interpreter must rewrite escapes one by one, so that they cost more than their bytes.
                    Some(level) if level.is_media => {
                        media += inside.len().saturating_sub(2 * escapes);
                    }
                    _ => {}
                }
                values += 1;
                parts += 1;
            }
            b'{' | b'[' => {
                values += 1;
                parts += 1;
                if levels.len() == limits.depth {
                    return Some("depth");
                }
                let is_object = byte == b'{';
                let is_media = !is_object && levels.last().is_some_and(|level| level.is_media_list);
                levels.push(Level {
                    is_object,
                    awaits_name: is_object,
                    names: 0,
                    is_media,
                    is_media_list: false,
                });
            }
            b'}' | b']' => {
                levels.pop();
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    level.awaits_name = level.is_object;
                }
            }
            b':' | b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                values += 1;
                while bytes.get(at).is_some_and(|&byte| !ends_a_number(byte)) {
                    at += 1;
                }
            }
        }
        if parts > limits.parts {
            return Some("parts");
        }
        if values > limits.values {
            return Some("values");
        }
    }
    (bytes.len() - media > limits.text).then_some("text")
}

/// The end of the string that begins at `start`, or of the text, and the number of escapes before it.
fn end_of_string(bytes: &[u8], start: usize) -> (usize, usize) {
    let (mut at, mut escapes) = (start, 0);
    while let Some(offset) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += offset;
        if bytes[at] == b'"' {
            return (at, escapes);
        }
        escapes += 1;
        at += 2;
    }
    (bytes.len(), escapes)
}

fn ends_a_number(byte: u8) -> bool {
    matches!(
        byte,
        b',' | b']' | b'}' | b':' | b'"' | b'[' | b'{' | b' ' | b'\t' | b'\r' | b'\n'
    )
}

/// The name of the first limit that a JSON text exceeds. Runs without the interpreter's lock.
#[pyfunction]
#[pyo3(signature = (body, /, *, text, values, parts, names, depth))]
fn json_excess(
    py: Python<'_>,
    body: &[u8],
    text: usize,
    values: usize,
    parts: usize,
    names: usize,
    depth: usize,
) -> Option<&'static str> {
    let limits = JsonLimits {
        text,
        values,
        parts,
        names,
        depth,
    };
    py.detach(|| excess(body, &limits))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(json_excess, module)?)
}
