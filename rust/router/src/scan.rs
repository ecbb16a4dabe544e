//! One pass over a JSON body that finds what routing needs, without building anything from it.
//!
//! The pass is forgiving: a body that is cut off or is not JSON gives what was found up to there. It
//! neither recurses nor allocates besides growing `key`.

use std::hash::{DefaultHasher, Hasher};

use memchr::{memchr2, memchr3};

/// What a body says besides its text; slices of the body, escapes left as they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan<'a> {
    pub model: &'a [u8],
    pub user: &'a [u8],
}

/// Starts the text of a message; followed by the first letter of its role.
const MESSAGE: u8 = 0x1e;

/// Media values longer than this enter the key by their hash.
const MEDIA_INLINE: usize = 64;

/// Appends to `key` the text that a model would see first to last: the prompt, or each message's role
/// and content. The same images or audio give the same few bytes, whatever their size.
pub fn scan<'a>(body: &'a [u8], key: &mut Vec<u8>) -> Scan<'a> {
    let mut found = Scan::default();
    let mut cursor = Cursor { bytes: body, at: 0 };
    let _ = cursor.object(|cursor, name| {
        match name {
            b"model" => found.model = cursor.string_or_skip()?,
            b"user" => found.user = cursor.string_or_skip()?,
            b"messages" | b"prompt" | b"input" | b"text" => cursor.text_value(key)?,
            b"input_ids" => key.extend_from_slice(cursor.skip()?),
            b"images" | b"audios" | b"videos" => push_media(key, cursor.skip()?),
            _ => {
                cursor.skip()?;
            }
        }
        Some(())
    });
    found
}

fn push_media(key: &mut Vec<u8>, value: &[u8]) {
    if value.len() <= MEDIA_INLINE {
        return key.extend_from_slice(value);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    key.extend_from_slice(format!("{:016x}", hasher.finish()).as_bytes());
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not white space, not consumed.
    fn peek(&mut self) -> Option<u8> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Calls `value` for each name of an object; `value` must consume what belongs to it.
    fn object(&mut self, mut value: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.take(b':')?;
            value(self, name)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    fn array(&mut self, mut value: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            value(self)?;
            if self.take(b',').is_none() {
                return self.take(b']');
            }
        }
    }

    /// The inside of a string. One that is cut off by the end gives what is there.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match memchr2(b'"', b'\\', self.bytes.get(self.at..)?) {
                None => {
                    self.at = self.bytes.len();
                    return Some(&self.bytes[start..]);
                }
                Some(offset) => {
                    self.at += offset;
                    if self.bytes[self.at] == b'"' {
                        let inside = &self.bytes[start..self.at];
                        self.at += 1;
                        return Some(inside);
                    }
                    self.at += 2;
                }
            }
        }
    }

    fn string_or_skip(&mut self) -> Option<&'a [u8]> {
        if self.peek()? == b'"' {
            self.string()
        } else {
            self.skip().map(|_| &b""[..])
        }
    }

    /// Passes over one value of any kind and returns it as it is written.
    fn skip(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' | b'[' => {
                let mut depth = 0usize;
                while let Some(&byte) = self.bytes.get(self.at) {
                    match byte {
                        b'"' => {
                            self.string()?;
                            continue;
                        }
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
            }
            b',' | b':' | b'}' | b']' => return None,
            _ => {
                let rest = &self.bytes[self.at..];
                self.at += memchr3(b',', b'}', b']', rest).unwrap_or(rest.len());
            }
        }
        Some(&self.bytes[start..self.at])
    }

    /// A prompt: a string, several, token ids, or messages.
    fn text_value(&mut self, key: &mut Vec<u8>) -> Option<()> {
        match self.peek()? {
            b'"' => key.extend_from_slice(self.string()?),
            b'[' => self.array(|cursor| match cursor.peek()? {
                b'{' => cursor.message(key),
                b'"' => {
                    key.push(MESSAGE);
                    key.extend_from_slice(cursor.string()?);
                    Some(())
                }
                _ => {
                    key.extend_from_slice(cursor.skip()?);
                    key.push(b',');
                    Some(())
                }
            })?,
            _ => {
                self.skip()?;
            }
        }
        Some(())
    }

    /// Role first, then content, in whichever order they are written.
    fn message(&mut self, key: &mut Vec<u8>) -> Option<()> {
        let (mut role, mut content) = (&b""[..], None);
        let end = self.object(|cursor, name| {
            match name {
                b"role" => role = cursor.string_or_skip()?,
                b"content" => {
                    cursor.peek()?;
                    content = Some(cursor.at);
                    cursor.skip()?;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Some(())
        });
        key.push(MESSAGE);
        key.extend_from_slice(role.get(..1).unwrap_or_default());
        if let Some(at) = content {
            Cursor {
                bytes: self.bytes,
                at,
            }
            .content(key)?;
        }
        end
    }

    fn content(&mut self, key: &mut Vec<u8>) -> Option<()> {
        if self.peek()? != b'[' {
            key.extend_from_slice(self.string_or_skip()?);
            return Some(());
        }
        self.array(|cursor| {
            if cursor.peek()? != b'{' {
                key.extend_from_slice(cursor.string_or_skip()?);
                return Some(());
            }
            cursor.object(|cursor, name| {
                match name {
                    b"type" => {
                        cursor.skip()?;
                    }
                    b"text" => key.extend_from_slice(cursor.string_or_skip()?),
                    _ => push_media(key, cursor.skip()?),
                }
                Some(())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(body: &str) -> String {
        let mut key = Vec::new();
        scan(body.as_bytes(), &mut key);
        String::from_utf8(key).unwrap().replace('\u{1e}', "|")
    }

    #[test]
    fn finds_model_user_and_prompt_anywhere() {
        let body = br#" {"n": [1, {"prompt": "no"}], "prompt" : "say \"hi\" \u00e9", "user":"u1", "model":"m", "x": null}"#;
        let mut text = Vec::new();
        let found = scan(body, &mut text);
        assert_eq!(
            found,
            Scan {
                model: b"m",
                user: b"u1"
            }
        );
        assert_eq!(text, br#"say \"hi\" \u00e9"#);
    }

    #[test]
    fn messages_give_roles_and_text_in_any_order_and_spacing() {
        let one = key(
            r#"{"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hello"}]}"#,
        );
        let two = key(
            r#"{ "messages" : [ {"content" : "S", "role" : "system"} , {"content":[{"type":"text","text":"Hello"}],"role":"user"} ] }"#,
        );
        assert_eq!(one, "|sS|uHello");
        assert_eq!(one, two);
    }

    #[test]
    fn a_longer_conversation_extends_the_key() {
        let one = key(r#"{"messages":[{"role":"user","content":"A"}]}"#);
        let two = key(
            r#"{"messages":[{"role":"user","content":"A"},{"role":"assistant","content":"B"}],"stream":true}"#,
        );
        assert!(two.starts_with(&one));
    }

    #[test]
    fn media_is_hashed_whatever_its_size() {
        let part = |data: &str| {
            key(&format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{data}"}}}},{{"type":"text","text":"what?"}}]}}]}}"#
            ))
        };
        let (one, two) = (part(&"a".repeat(100_000)), part(&"b".repeat(100_000)));
        assert_eq!(one.len(), "|u".len() + 16 + "what?".len());
        assert_ne!(one, two);
        assert_eq!(one, part(&"a".repeat(100_000)));
    }

    #[test]
    fn token_ids_and_lists_of_prompts() {
        assert_eq!(key(r#"{"prompt":[1, 22,3]}"#), "1,22,3,");
        assert_eq!(key(r#"{"input_ids":[1,2]}"#), "[1,2]");
        assert_eq!(key(r#"{"prompt":["a","b"]}"#), "|a|b");
    }

    #[test]
    fn bodies_that_are_cut_or_not_json_give_what_is_there() {
        assert_eq!(key(r#"{"prompt":"once upon a ti"#), "once upon a ti");
        assert_eq!(
            key(r#"{"messages":[{"role":"user","content":"cut of"#),
            "|ucut of"
        );
        for body in [
            "",
            "{",
            "[1]",
            "{\"prompt\"",
            "{\"prompt\":}",
            "}{",
            "{\"a\":]",
            "\"\\",
            "{\"a\":\"\\",
            "{\"a\":[[[[",
        ] {
            assert_eq!(key(body), "", "{body}");
        }
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let deep = format!(
            "{{\"x\":{}{},\"prompt\":\"p\"}}",
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        assert_eq!(key(&deep), "p");
    }

    #[test]
    fn every_cut_of_a_body_is_read_without_a_panic() {
        let body = br#"{"model":"m\\","messages":[{"role":"user","content":[{"type":"text","text":"a\"b"},{"image_url":{"url":"x"}}]}],"n":-1.5e3}"#;
        for end in 0..=body.len() {
            scan(&body[..end], &mut Vec::new());
        }
    }
}
