//! Reads from the end of an answer how many tokens of the prompt the worker had cached.
//!
//! OpenAI's `usage` and SGLang's `meta_info` are at the end of a JSON answer and in the last events of a stream, so
//! only the last bytes are searched. Quotes inside a JSON string are escaped, so the model's own text is never
//! mistaken for usage.
//!
//! A request says how long its answer may be, and so about how many tokens it costs.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use sglang_omni_policy::Usage;

/// Names of fields, prepared for the search, since preparing takes longer than searching.
struct Names {
    prompt: Finder<'static>,
    input: Finder<'static>,
    cached: Finder<'static>,
    cache_read: Finder<'static>,
    cache_creation: Finder<'static>,
}

static NAMES: LazyLock<Names> = LazyLock::new(|| Names {
    prompt: Finder::new("\"prompt_tokens\""),
    input: Finder::new("\"input_tokens\""),
    cached: Finder::new("\"cached_tokens\""),
    cache_read: Finder::new("\"cache_read_input_tokens\""),
    cache_creation: Finder::new("\"cache_creation_input_tokens\""),
});

/// The names of the most tokens that an answer may have.
static LIMITS: LazyLock<[Finder<'static>; 4]> = LazyLock::new(|| {
    let names = [
        "\"max_tokens\"",
        "\"max_completion_tokens\"",
        "\"max_output_tokens\"",
        "\"max_new_tokens\"",
    ];
    names.map(Finder::new)
});
/// An answer's tokens if the request does not limit them.
const USUAL_ANSWER: u64 = 256;
/// An answer's tokens at most, whatever the request allows: no model writes more, and a worker may refuse the request.
/// Without a limit, one request could take a tenant's rate for weeks.
const LONGEST_ANSWER: u64 = 131_072;
/// Bytes of a token of a prompt, about.
const TOKEN_BYTES: u64 = 4;

/// About how many tokens a request costs, prompt and answer, by its JSON body.
pub fn tokens(body: &[u8]) -> u64 {
    let limit = LIMITS.iter().find_map(|name| last_number(body, name));
    let answer = limit.unwrap_or(USUAL_ANSWER).min(LONGEST_ANSWER);
    (body.len() as u64 / TOKEN_BYTES).saturating_add(answer)
}

/// The usage in the end of an answer, if it says how much of the prompt was cached.
pub fn read(text: &[u8]) -> Option<Usage> {
    let names = &*NAMES;
    let (prompt_tokens, cached_tokens) = match last_number(text, &names.cached) {
        Some(cached) => {
            let openai = last_number(text, &names.prompt);
            let prompt = openai.or_else(|| last_number(text, &names.input))?;
            (prompt, cached)
        }
        // Anthropic counts cached tokens apart from the others.
        None => {
            let cached = last_number(text, &names.cache_read)?;
            let added = last_number(text, &names.cache_creation).unwrap_or(0);
            let new = last_number(text, &names.input)?;
            (new.checked_add(cached)?.checked_add(added)?, cached)
        }
    };
    (0 < prompt_tokens && cached_tokens <= prompt_tokens).then_some(Usage {
        prompt_tokens,
        cached_tokens,
    })
}

/// The number after the last occurrence of a name.
fn last_number(text: &[u8], name: &Finder<'_>) -> Option<u64> {
    // Searched forwards: memchr compares many bytes at a time in that direction only.
    let at = name.find_iter(text).last()? + name.needle().len();
    let value = text[at..].trim_ascii_start().strip_prefix(b":")?;
    let value = value.trim_ascii_start();
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    // A number that the end of the text may have cut off could be any.
    if digits == value.len() {
        return None;
    }
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use crate::upstream::tail::{KEPT, Tail};

    fn read(pieces: &[&[u8]]) -> Option<(u64, u64)> {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        let usage = super::read(tail.bytes())?;
        Some((usage.prompt_tokens, usage.cached_tokens))
    }

    const CHAT: &[u8] = br#"{"id":"x","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":120,"total_tokens":130,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":96}},"kv_transfer_params":null}"#;

    #[test]
    fn a_request_costs_its_prompt_and_an_answer_of_possible_length() {
        let cost = |limit: &str| super::tokens(format!(r#"{{"max_tokens": {limit}}}"#).as_bytes());
        assert_eq!(cost("100"), 100 + 4);
        assert_eq!(super::tokens(b"{}  "), 256 + 1);
        for limit in ["131072", "1000000000", "1000000000000000000"] {
            assert!((131_072..131_082).contains(&cost(limit)), "{limit}");
        }
    }

    #[test]
    fn usage_of_every_kind_of_answer() {
        assert_eq!(read(&[CHAT]), Some((120, 96)));
        let stream: &[&[u8]] = &[
            b"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n",
            b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\": 7, \"prompt_tokens_details\": {\"cached_tokens\": 0}}}\n\n",
            b"data: [DONE]\n\n",
        ];
        assert_eq!(read(stream), Some((7, 0)));
        let generate = br#"{"text":"hi","meta_info":{"id":"a","prompt_tokens":64,"completion_tokens":3,"cached_tokens":63,"e2e_latency":0.1}}"#;
        assert_eq!(read(&[generate]), Some((64, 63)));
        let responses = br#"{"usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":48},"output_tokens":2}}"#;
        assert_eq!(read(&[responses]), Some((50, 48)));
        let anthropic = br#"{"usage":{"input_tokens":4,"cache_creation_input_tokens":6,"cache_read_input_tokens":90,"output_tokens":1}}"#;
        assert_eq!(read(&[anthropic]), Some((100, 90)));
    }

    #[test]
    fn no_matter_where_it_was_cut_into_pieces() {
        for at in 0..CHAT.len() {
            let (one, two) = CHAT.split_at(at);
            assert_eq!(read(&[one, two]), Some((120, 96)));
            let long = vec![b' '; 3000];
            assert_eq!(read(&[&long, one, b"", two]), Some((120, 96)));
        }
        let bytes: Vec<&[u8]> = CHAT.chunks(1).collect();
        assert_eq!(read(&bytes), Some((120, 96)));
        assert_eq!(read(&[CHAT, &vec![b' '; KEPT]]), None);
    }

    #[test]
    fn what_the_model_wrote_and_what_makes_no_sense_is_not_usage() {
        for body in [
            r#"{"content":"{\"cached_tokens\": 5, \"prompt_tokens\": 9}"}"#,
            r#"{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}"#,
            r#"{"usage":{"prompt_tokens":5,"cached_tokens":null}}"#,
            r#"{"usage":{"prompt_tokens":5,"cached_tokens":6}}"#,
            r#"{"usage":{"prompt_tokens":0,"cached_tokens":0}}"#,
            r#"{"usage":{"prompt_tokens":"5","cached_tokens":5}}"#,
            r#"{"usage":{"prompt_tokens":99999999999999999999999,"cached_tokens":5}}"#,
            r#"{"usage":{"cache_read_input_tokens":18446744073709551615,"input_tokens":5}}"#,
            r#"{"usage":{"prompt_tokens":120,"cached_tokens":12"#,
            r#"{"cached_tokens"}"#,
            r#""cached_tokens":"#,
            "",
        ] {
            assert_eq!(read(&[body.as_bytes()]), None, "{body}");
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut rng = fastrand::Rng::with_seed(5);
        let words: [&[u8]; 7] = [
            b"\"cached_tokens\"",
            b"\"prompt_tokens\"",
            b":",
            b"1",
            b"\\",
            b"}",
            b"\xff",
        ];
        for _ in 0..20_000 {
            let pieces: Vec<&[u8]> = (0..rng.usize(..12))
                .map(|_| words[rng.usize(..words.len())])
                .collect();
            if let Some((prompt, cached)) = read(&pieces) {
                assert!(cached <= prompt && prompt > 0);
            }
        }
    }
}
