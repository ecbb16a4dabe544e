//! Reads a field of a multipart form, as far as the form is there.

use memchr::memmem::{find, find_iter};

/// The value of a form's first field of this name; None if it is not whole within `body`, or `content_type` is no form's.
pub fn field<'a>(content_type: &str, body: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let delimiter = format!("--{}", parameter(content_type, "boundary")?);
    let ends = format!("\r\n{delimiter}");
    find_iter(body, delimiter.as_bytes()).find_map(|at| {
        let part = body[at + delimiter.len()..].strip_prefix(b"\r\n")?;
        let (head, content) = part.split_at(find(part, b"\r\n\r\n")?);
        let is_named = std::str::from_utf8(head).ok()?.lines().any(|line| {
            line.split_once(':').is_some_and(|(header, value)| {
                header.eq_ignore_ascii_case("content-disposition")
                    && parameter(value, "name") == Some(name)
            })
        });
        let content = &content[b"\r\n\r\n".len()..];
        is_named.then(|| Some(&content[..find(content, ends.as_bytes())?]))?
    })
}

/// A parameter of a header's value, without its quotes.
fn parameter<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(';').skip(1).find_map(|each| {
        let (key, value) = each.split_once('=')?;
        key.trim()
            .eq_ignore_ascii_case(name)
            .then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; charset=utf-8; boundary=\"xx\"";

    fn model(body: &str) -> Option<&str> {
        field(KIND, body.as_bytes(), "model").map(|value| std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn a_field_is_found_wherever_it_stands() {
        let file = "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\
                    Content-Type: audio/wav\r\n\r\nRIFF--xx\r\n\r\n\r\n";
        let field = "--xx\r\ncontent-disposition: form-data; name=model\r\n\r\norg/m\r\n";
        assert_eq!(model(&format!("{field}{file}--xx--\r\n")), Some("org/m"));
        assert_eq!(model(&format!("{file}{field}--xx--\r\n")), Some("org/m"));
        assert_eq!(model(&format!("{file}--xx--\r\n")), None);
    }

    #[test]
    fn what_is_cut_off_or_no_form_has_no_field() {
        let whole = "--xx\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--xx--\r\n";
        for end in 0..whole.len() {
            let is_whole = end >= whole.len() - "--\r\n".len();
            assert_eq!(model(&whole[..end]), is_whole.then_some("m"), "{end}");
        }
        for kind in ["multipart/form-data", "application/json", "a; boundary=yy"] {
            assert_eq!(field(kind, whole.as_bytes(), "model"), None, "{kind}");
        }
    }
}
