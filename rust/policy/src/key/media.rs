//! Hashes images, audio and video: a medium takes the same few bytes of a key however large it is, and in
//! whichever form a request has it.

use rapidhash::v3::rapidhash_v3;

use crate::key::json::{Cursor, Text};

/// Stands before each hash.
const MARK: u8 = 0x1d;

/// Of a longer value only the beginning is hashed. The router holds and searches only the start of a long body;
/// a whole hash would depend on where in a picture that start happens to end.
const WHOLE: usize = 256 << 10;
const BEGINNING: usize = 64 << 10;

/// Appends the hash of a media value: a URL, base64 with or without `data:` before it, or an object that holds
/// either.
pub fn push(key: &mut Vec<u8>, cursor: &mut Cursor<'_>) -> Option<()> {
    match cursor.peek()? {
        b'"' => push_hash(key, content(cursor.string()?)),
        b'{' => {
            let mut held = *cursor;
            let raw = cursor.skip()?;
            match find_content(&mut held) {
                Some(text) => push_hash(key, content(text)),
                None => push_hash(key, raw),
            }
        }
        b'n' => {
            cursor.skip()?;
        }
        _ => push_hash(key, cursor.skip()?),
    }
    Some(())
}

/// Appends the hash of each of several media values, or of one.
pub fn push_all(key: &mut Vec<u8>, cursor: &mut Cursor<'_>) -> Option<()> {
    if cursor.peek()? == b'[' {
        return cursor.array(|cursor| push(key, cursor));
    }
    push(key, cursor)
}

fn push_hash(key: &mut Vec<u8>, content: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let hash = rapidhash_v3(content);
    key.push(MARK);
    key.extend(
        (0..16)
            .rev()
            .map(|digit| DIGITS[(hash >> (4 * digit) & 15) as usize]),
    );
}

/// The string with the content in an object of any API.
fn find_content<'a>(cursor: &mut Cursor<'a>) -> Option<Text<'a>> {
    let mut found = None;
    let _ = cursor.object(|cursor, name| {
        let is_content = matches!(
            name,
            b"url"
                | b"data"
                | b"image"
                | b"audio"
                | b"video"
                | b"base64"
                | b"file_id"
                | b"file_data"
        );
        if is_content && found.is_none() && cursor.peek()? == b'"' {
            found = Some(cursor.string()?);
        } else {
            cursor.skip()?;
        }
        Some(())
    });
    found
}

/// The part of a value that is hashed.
fn content(text: Text<'_>) -> &[u8] {
    const SCHEME: &[u8] = b"data:";
    let mut bytes = text.bytes;
    if bytes.starts_with(SCHEME) {
        // The media type, which may name more than one parameter, ends at the comma.
        let head = &bytes[..bytes.len().min(256)];
        bytes = &bytes[memchr::memchr(b',', head).map_or(SCHEME.len(), |comma| comma + 1)..];
    }
    if text.is_cut || bytes.len() > WHOLE {
        &bytes[..bytes.len().min(BEGINNING)]
    } else {
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &str) -> Vec<u8> {
        let mut key = Vec::new();
        push(&mut key, &mut Cursor::new(value.as_bytes())).unwrap();
        key
    }

    #[test]
    fn the_same_picture_however_it_is_given() {
        let picture = "iVBORw0KGgo".repeat(1000);
        let plain = key(&format!("\"{picture}\""));
        assert_eq!(plain.len(), 17);
        for form in [
            format!("\"data:image/png;base64,{picture}\""),
            format!("{{\"url\": \"data:image/png;base64,{picture}\", \"detail\": \"low\"}}"),
            format!("{{\"format\": \"png\", \"data\": \"{picture}\"}}"),
            format!(
                "{{\"type\": \"base64\", \"media_type\": \"image/png\", \"data\": \"{picture}\"}}"
            ),
        ] {
            assert_eq!(key(&form), plain, "{}", &form[..40]);
        }
        assert_ne!(key(&format!("\"{picture}x\"")), plain);
        assert_eq!(
            key("\"http://a/b.png\""),
            key("{\"url\":\"http://a/b.png\"}")
        );
        assert_ne!(key("{\"x\":1}"), key("{\"x\":2}"));
        assert_eq!(key("null"), b"");
    }

    #[test]
    fn a_large_picture_is_the_same_wherever_the_body_was_cut() {
        let picture = "data:image/png;base64,".to_owned() + &"0123456789".repeat(300_000);
        let whole = key(&format!("{{\"url\":\"{picture}\"}}"));
        for held in [100_000, 300_000, 1 << 20] {
            assert_eq!(key(&format!("{{\"url\":\"{}", &picture[..held])), whole);
            assert_eq!(key(&format!("\"{}", &picture[..held])), whole);
        }
    }
}
