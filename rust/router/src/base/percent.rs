//! Percent-encoded text.

/// The text with its `%xx` decoded; a `%` without two digits stays.
pub fn decode(text: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(text);
    decoded.decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_urls() {
        assert_eq!(decode("http%3A%2F%2Fa%3a1"), "http://a:1");
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%2"), "%zz%2");
    }
}
