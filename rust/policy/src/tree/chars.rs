//! Compares and cuts text, held as bytes, between characters only.

/// Whether a character may begin at `at`: in UTF-8, if there is no continuation byte. Text that is not UTF-8 may
/// have no such place nearby; there any byte will do.
fn is_boundary(text: &[u8], at: usize) -> bool {
    let continues = |at: usize| text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    !continues(at) || (at >= 3 && continues(at - 1) && continues(at - 2) && continues(at - 3))
}

/// The first character's bytes as a number, by which children are told apart. The bytes are on the left: a
/// continuation byte is never 0, so no shorter character has a longer one's number.
pub fn first_char(text: &[u8]) -> u32 {
    let mut bytes = [text[0], 0, 0, 0];
    let rest = text[1..].iter().take_while(|&&byte| byte & 0xc0 == 0x80);
    for (place, &byte) in bytes[1..].iter_mut().zip(rest) {
        *place = byte;
    }
    u32::from_be_bytes(bytes)
}

/// Bytes in the blocks of `N` that both begin with.
fn equal_blocks<const N: usize>(a: &[u8], b: &[u8]) -> usize {
    let (a, b) = (a.as_chunks::<N>().0, b.as_chunks::<N>().0);
    N * a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Bytes that both begin with, ending between characters.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    // Whole blocks compare at the speed of memory; only the last few bytes are compared one by one.
    let mut end = equal_blocks::<256>(a, b);
    end += equal_blocks::<16>(&a[end..], &b[end..]);
    end += equal_blocks::<1>(&a[end..], &b[end..]);
    back_to_boundary(a, b, end)
}

fn back_to_boundary(a: &[u8], b: &[u8], at: usize) -> usize {
    (at.saturating_sub(3).max(1)..=at)
        .rev()
        .find(|&at| is_boundary(a, at) && is_boundary(b, at))
        .unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_between_characters() {
        let of = |a: &str, b: &str| common_prefix(a.as_bytes(), b.as_bytes());
        assert_eq!(of("abc", "abd"), 2);
        assert_eq!(of("abc", "abcd"), 3);
        assert_eq!(of("ab\u{e9}", "ab\u{e8}"), 2);
        assert_eq!(of("a\u{1f600}", "a\u{1f601}"), 1);
        let long = "x".repeat(1000);
        assert_eq!(of(&long, &format!("{long}y")), 1000);
        assert_eq!(of(&format!("{long}\u{e9}"), &format!("{long}\u{e8}")), 1000);
    }

    #[test]
    fn bytes_that_are_no_characters_still_have_a_prefix() {
        let (a, b) = ([0x80; 10], [0x80, 0x80, 0x80, 0x80, 0x80, 0x81]);
        assert_eq!(common_prefix(&a, &b), 5);
        assert_eq!(first_char(&a), first_char(&b));
    }

    #[test]
    fn a_nul_before_a_continuation_byte_is_not_that_byte() {
        assert_ne!(first_char(&[0, 0x80]), first_char(&[0x80, b'a']));
        assert_ne!(first_char(&[0xc3, 0x80]), first_char(&[0, 0xc3, 0x80]));
    }
}
