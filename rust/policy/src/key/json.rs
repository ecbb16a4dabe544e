//! A cursor over JSON text that builds no values.
//!
//! Of text that is cut off or is not JSON it reads what comes before. It neither recurses nor allocates.

use memchr::{memchr2, memchr3};

#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The inside of a string, escapes left as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    pub bytes: &'a [u8],
    /// Whether the end of the text cut it off.
    pub is_cut: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// The next byte that is not white space, not consumed.
    pub fn peek(&mut self) -> Option<u8> {
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
    pub fn object(
        &mut self,
        mut value: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?.bytes;
            self.take(b':')?;
            value(self, name)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// Calls `value` for each item of an array; `value` must consume it.
    pub fn array(&mut self, mut value: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
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

    pub fn string(&mut self) -> Option<Text<'a>> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match memchr2(b'"', b'\\', self.bytes.get(self.at..)?) {
                None => {
                    self.at = self.bytes.len();
                    return Some(Text {
                        bytes: &self.bytes[start..],
                        is_cut: true,
                    });
                }
                Some(offset) => {
                    self.at += offset;
                    if self.bytes[self.at] == b'"' {
                        let bytes = &self.bytes[start..self.at];
                        self.at += 1;
                        return Some(Text {
                            bytes,
                            is_cut: false,
                        });
                    }
                    self.at += 2;
                }
            }
        }
    }

    /// The inside of a string; empty for a value of another kind.
    pub fn string_or_skip(&mut self) -> Option<&'a [u8]> {
        if self.peek()? == b'"' {
            self.string().map(|text| text.bytes)
        } else {
            self.skip().map(|_| &b""[..])
        }
    }

    /// Skips one value of any kind and returns it as it is written.
    pub fn skip(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' => self.skip_nested(b'{', b'}')?,
            b'[' => self.skip_nested(b'[', b']')?,
            b',' | b':' | b'}' | b']' => return None,
            _ => {
                let rest = &self.bytes[self.at..];
                self.at += memchr3(b',', b'}', b']', rest).unwrap_or(rest.len());
            }
        }
        Some(&self.bytes[start..self.at])
    }

    /// Whether an array begins with a number, or with an array that does.
    pub fn holds_numbers(&self) -> bool {
        let mut first = *self;
        while first.take(b'[').is_some() {}
        matches!(first.peek(), Some(b'0'..=b'9' | b'-'))
    }

    /// What is written of an array of numbers, to its end or to where the text is cut off; empty for any other value.
    pub fn numbers(mut self) -> &'a [u8] {
        let is_list = self.peek() == Some(b'[');
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let is_flat = || !rest[1..].trim_ascii_start().starts_with(b"[");
        if !is_list || !self.holds_numbers() || !is_flat() {
            return b"";
        }
        let end = memchr::memchr(b']', rest).map_or(rest.len(), |end| end + 1);
        &rest[..end]
    }

    /// Skips to where as many brackets have closed as opened. Brackets of the other kind need no counting.
    fn skip_nested(&mut self, open: u8, close: u8) -> Option<()> {
        let mut depth = 0usize;
        while let Some(offset) = memchr3(b'"', open, close, self.bytes.get(self.at..)?) {
            self.at += offset;
            match self.bytes[self.at] {
                b'"' => {
                    self.string()?;
                    continue;
                }
                byte if byte == open => depth += 1,
                _ => depth -= 1,
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
        self.at = self.bytes.len();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_passed_over_whole() {
        for value in [
            r#""a \" b""#,
            "{}",
            "[]",
            r#"{"a":[{"b":"}]"}],"c":1}"#,
            r#"[[1,2],{"x":"]"},"\\"]"#,
            "-1.5e3",
            "null",
        ] {
            let text = format!(" {value} , rest");
            assert_eq!(
                Cursor::new(text.as_bytes())
                    .skip()
                    .map(<[u8]>::trim_ascii_end),
                Some(value.as_bytes())
            );
        }
        for wrong in ["", " ", "}", ",", "]", ":"] {
            assert_eq!(Cursor::new(wrong.as_bytes()).skip(), None);
        }
    }

    #[test]
    fn what_is_cut_off_is_given_as_far_as_it_goes() {
        let text = Cursor::new(b"\"once upon").string().unwrap();
        assert_eq!((text.bytes, text.is_cut), (&b"once upon"[..], true));
        assert_eq!(
            Cursor::new(b"[1,{\"a\":[").skip(),
            Some(&b"[1,{\"a\":["[..])
        );
        assert_eq!(Cursor::new(b"\"a\\").string(), None);
    }
}
