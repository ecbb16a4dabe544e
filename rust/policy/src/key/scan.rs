//! Reads a request's JSON body for routing: its model, its user, and the text that the model would see.

use std::borrow::Cow;

use crate::key::json::Cursor;
use crate::key::media;

/// The other parts of a body than its text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan<'a> {
    pub model: Cow<'a, [u8]>,
    /// `prompt_cache_key`, or else `user`; with its escapes.
    pub user: &'a [u8],
    /// The id of the response that this one follows, with its escapes.
    pub previous: &'a [u8],
    /// Whether the text has hashes instead of media.
    pub has_media: bool,
    /// Whether the body ends before its JSON does.
    pub is_cut: bool,
    /// Whether the request bypasses the worker's cache, or uses a part of it of its own: its `cached_tokens`
    /// then do not tell what else the worker remembers.
    pub bypasses_cache: bool,
}

/// Starts the text of a message; followed by the first letter of its role.
const MESSAGE: u8 = 0x1e;
/// Stands before the name of an adapter.
const ADAPTER: u8 = 0x1f;
/// Stands before a salt, which keeps a prompt apart from equal ones in caches.
const SALT: u8 = 0x1c;

/// Stands before what a chat template is told beside the conversation, each followed by its place in `SETTINGS`.
const SETTING: u8 = 0x1b;
/// Fields that change how a conversation is written, mostly in its first tokens.
const SETTINGS: [&[u8]; 4] = [
    b"chat_template_kwargs",
    b"reasoning_effort",
    b"reasoning",
    b"tool_choice",
];

/// The places of a prompt's parts in a body, in the order in which a model sees them.
#[derive(Default)]
struct Parts<'a> {
    adapter: &'a [u8],
    settings: [&'a [u8]; SETTINGS.len()],
    salt: &'a [u8],
    /// The response that this one follows: the prompt begins with a conversation that is not in the body.
    previous: &'a [u8],
    system: Option<Cursor<'a>>,
    tools: &'a [u8],
    documents: &'a [u8],
    media: [Option<Cursor<'a>>; 3],
    prompt: Option<Cursor<'a>>,
}

/// Appends to `key` the text that a model would see, first to last, whatever the order of the fields: the cache
/// salt, what the template is told, the adapter, the system prompt, tools and documents, a hash of each medium, then
/// the prompt, or each message's role and content. A system message that begins the messages is the system prompt. Reads bodies of OpenAI's APIs, Anthropic's, and SGLang's `/generate`.
pub fn scan<'a>(body: &'a [u8], key: &mut Vec<u8>) -> Scan<'a> {
    let mut found = Scan::default();
    let mut parts = Parts::default();
    let mut cache_key = &b""[..];
    let whole = Cursor::new(body).object(|cursor, name| {
        cursor.peek()?;
        let here = Some(*cursor);
        match name {
            b"model" => found.model = unescaped(cursor.string_or_skip()?),
            b"user" => found.user = cursor.string_or_skip()?,
            b"prompt_cache_key" => cache_key = cursor.string_or_skip()?,
            b"lora_path" | b"lora_name" | b"lora_id" | b"adapter" | b"adapter_id" => {
                parts.adapter = cursor.skip()?;
            }
            b"cache_salt" | b"extra_key" => parts.salt = cursor.skip()?,
            b"previous_response_id" => {
                let mut value = *cursor;
                parts.previous = cursor.skip()?;
                found.previous = value.string_or_skip()?;
            }
            b"logprobs" | b"prompt_logprobs" | b"echo" | b"return_logprob"
            | b"logprob_start_len" | b"input_embeds" => {
                found.bypasses_cache |= is_set(cursor.skip()?);
            }
            _ => {
                match name {
                    b"system" | b"instructions" => parts.system = here,
                    b"images" | b"image_data" => parts.media[0] = here,
                    b"audios" | b"audio_data" => parts.media[1] = here,
                    b"videos" | b"video_data" => parts.media[2] = here,
                    b"messages" | b"prompt" | b"input" | b"text" | b"input_ids"
                    | b"prompt_token_ids" => parts.prompt = parts.prompt.or(here),
                    _ => {}
                }
                let value = cursor.skip()?;
                match name {
                    b"tools" => parts.tools = value,
                    b"documents" => parts.documents = value,
                    _ => {
                        if let Some(place) = SETTINGS.iter().position(|&known| known == name) {
                            parts.settings[place] = value;
                        }
                    }
                }
            }
        }
        Some(())
    });
    if !cache_key.is_empty() {
        found.user = cache_key;
    }
    found.is_cut = whole.is_none();
    found.bypasses_cache |= is_set(parts.salt) || is_set(parts.previous);
    found.has_media = parts.append(key);
    found
}

/// The text of a JSON string. If its escapes are no JSON, they stay.
fn unescaped(string: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', string).is_none() {
        return Cow::Borrowed(string);
    }
    let quoted = [b"\"", string, b"\""].concat();
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => Cow::Owned(text.into_bytes()),
        Err(_) => Cow::Borrowed(string),
    }
}

/// Whether a value is there and is neither null, false nor 0.
fn is_set(value: &[u8]) -> bool {
    !matches!(value, b"" | b"null" | b"false" | b"0")
}

impl Parts<'_> {
    /// Returns whether there are media among them.
    fn append(self, key: &mut Vec<u8>) -> bool {
        let mut writer = Writer {
            key,
            has_media: false,
            after_system: Some(AfterSystem {
                tools: self.tools,
                documents: self.documents,
                media: self.media,
            }),
        };
        for salt in [self.salt, self.previous] {
            if is_set(salt) {
                writer.key.push(SALT);
                writer.key.extend_from_slice(salt);
            }
        }
        for (place, value) in (b'0'..).zip(self.settings) {
            // "auto" is what counts if there is no choice.
            if is_set(value) && value != b"\"auto\"" {
                writer.key.extend_from_slice(&[SETTING, place]);
                writer.key.extend_from_slice(value);
            }
        }
        if is_set(self.adapter) {
            writer.key.push(ADAPTER);
            writer.key.extend_from_slice(self.adapter);
        }
        if let Some(mut system) = self.system {
            writer.key.push(MESSAGE);
            let _ = writer.content(&mut system);
            writer.end_system();
        }
        if let Some(mut prompt) = self.prompt {
            let _ = writer.prompt(&mut prompt);
        }
        writer.end_system();
        writer.has_media
    }
}

/// What stands between the system prompt and the conversation.
struct AfterSystem<'a> {
    tools: &'a [u8],
    documents: &'a [u8],
    media: [Option<Cursor<'a>>; 3],
}

struct Writer<'k, 'a> {
    key: &'k mut Vec<u8>,
    has_media: bool,
    /// None once it is written.
    after_system: Option<AfterSystem<'a>>,
}

impl Writer<'_, '_> {
    /// Appends what follows the system prompt, once.
    fn end_system(&mut self) {
        let Some(rest) = self.after_system.take() else {
            return;
        };
        self.key.extend_from_slice(rest.tools);
        if is_set(rest.documents) {
            self.key.extend_from_slice(rest.documents);
        }
        for mut media in rest.media.into_iter().flatten() {
            let before = self.key.len();
            let _ = media::push_all(self.key, &mut media);
            self.has_media |= self.key.len() > before;
        }
    }

    /// Appends a prompt: a string, several, token ids, or messages.
    fn prompt(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        let first = cursor.peek()?;
        if first != b'[' || cursor.holds_numbers() {
            self.end_system();
        }
        match first {
            b'"' => self.key.extend_from_slice(cursor.string_or_skip()?),
            b'[' if cursor.holds_numbers() => self.token_ids(cursor.skip()?),
            b'[' => cursor.array(|cursor| match cursor.peek()? {
                b'{' => self.message(cursor),
                _ => {
                    self.end_system();
                    self.key.push(MESSAGE);
                    self.key.extend_from_slice(cursor.string_or_skip()?);
                    Some(())
                }
            })?,
            _ => {
                cursor.skip()?;
            }
        }
        Some(())
    }

    /// Appends token ids as they are written, without the spaces that some clients put between them.
    fn token_ids(&mut self, ids: &[u8]) {
        let start = self.key.len();
        self.key.resize(start + ids.len(), 0);
        let mut end = start;
        for &byte in ids {
            self.key[end] = byte;
            end += usize::from(byte > b' ');
        }
        self.key.truncate(end);
    }

    /// Appends a message: its role, then its content and tool calls, whatever their order in the body.
    fn message(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        let (mut role, mut content, mut calls) = (&b""[..], None, &b""[..]);
        let end = cursor.object(|cursor, name| {
            match name {
                b"role" => role = cursor.string_or_skip()?,
                b"content" | b"output" | b"arguments" => {
                    cursor.peek()?;
                    content = Some(*cursor);
                    cursor.skip()?;
                }
                b"tool_calls" => calls = cursor.skip()?,
                _ => {
                    cursor.skip()?;
                }
            }
            Some(())
        });
        let is_system = matches!(role, b"system" | b"developer");
        if !is_system {
            self.end_system();
        }
        self.key.push(MESSAGE);
        self.key
            .extend_from_slice(role.get(..1).unwrap_or_default());
        if let Some(mut content) = content {
            self.content(&mut content)?;
        }
        self.key.extend_from_slice(calls);
        if is_system {
            self.end_system();
        }
        end
    }

    /// Appends a message's content: a string, or parts of text and media.
    fn content(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        if cursor.peek()? != b'[' {
            self.key.extend_from_slice(cursor.string_or_skip()?);
            return Some(());
        }
        cursor.array(|cursor| {
            if cursor.peek()? != b'{' {
                self.key.extend_from_slice(cursor.string_or_skip()?);
                return Some(());
            }
            cursor.object(|cursor, name| {
                match name {
                    b"text" => self.key.extend_from_slice(cursor.string_or_skip()?),
                    b"type" | b"detail" | b"cache_control" | b"id" | b"uuid" | b"title" => {
                        cursor.skip()?;
                    }
                    _ => {
                        self.has_media = true;
                        media::push(self.key, cursor)?;
                    }
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
                model: Cow::Borrowed(b"m"),
                user: b"u1",
                ..Scan::default()
            }
        );
        assert_eq!(text, br#"say \"hi\" \u00e9"#);
    }

    #[test]
    fn a_model_is_the_same_however_it_is_spelled() {
        let model = |body: &str| scan(body.as_bytes(), &mut Vec::new()).model.into_owned();
        for spelled in ["org/é\"", r#"org\/\u00e9""#, r#"\u006frg/\u00E9""#] {
            assert_eq!(
                model(&format!("{{\"model\":\"{spelled}}}")),
                "org/é".as_bytes()
            );
        }
        assert_eq!(model(r#"{"model":"a\x"}"#), br"a\x");
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
        assert_eq!(one.len(), "|u".len() + 17 + "what?".len());
        assert_ne!(one, two);
        assert_eq!(one, part(&"a".repeat(100_000)));
    }

    #[test]
    fn what_a_model_sees_first_comes_first() {
        let body = r#"{"messages":[{"role":"user","content":"Q"}],"images":["a.png"],"tools":[{"name":"t"}],"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"lora_path":"ad"}"#;
        let key = key(body);
        let (before, after) = key.split_once('\u{1d}').unwrap();
        assert_eq!(before, "\u{1f}\"ad\"|S[{\"name\":\"t\"}]");
        assert_eq!(&after[16..], "|uQ");
    }

    #[test]
    fn tools_stand_behind_the_system_message_as_in_templates() {
        let ask = |role: &str, tool: &str| {
            key(&format!(
                r#"{{"tools":[{tool}],"documents":["d"],"messages":[{{"role":"{role}","content":"S"}},{{"role":"user","content":"Q"}}]}}"#
            ))
        };
        assert_eq!(ask("system", "1"), "|sS[1][\"d\"]|uQ");
        assert_eq!(ask("developer", "2"), "|dS[2][\"d\"]|uQ");
        assert_eq!(ask("user", "1"), "[1][\"d\"]|uS|uQ");
        assert_eq!(key(r#"{"tools":[1],"prompt":"p"}"#), "[1]p");
        assert_eq!(key(r#"{"tools":[1],"prompt":[1, 2]}"#), "[1][1,2]");
        assert_eq!(key(r#"{"tools":[1]}"#), "[1]");
    }

    #[test]
    fn what_a_template_is_told_keeps_prompts_apart() {
        let ask = |field: &str| key(&format!(r#"{{{field}"prompt":"p"}}"#));
        let plain = ["", r#""tool_choice":"auto","#, r#""reasoning":null,"#];
        assert!(plain.iter().all(|field| ask(field) == "p"));
        let mut keys = std::collections::BTreeSet::new();
        for field in [
            r#""chat_template_kwargs":{"enable_thinking":false},"#,
            r#""chat_template_kwargs":{"enable_thinking":true},"#,
            r#""reasoning_effort":"low","#,
            r#""reasoning_effort":"high","#,
            r#""reasoning":{"effort":"high"},"#,
            r#""tool_choice":"none","#,
            r#""tool_choice":"required","#,
            r#""documents":["d"],"#,
        ] {
            let found = ask(field);
            assert!(found.len() > 1 && found.ends_with('p'), "{found}");
            assert!(keys.insert(found), "{field}");
        }
        // Whatever their order in the body.
        let (one, two) = (r#""tool_choice":"none","#, r#""reasoning_effort":"low","#);
        assert_eq!(ask(&format!("{one}{two}")), ask(&format!("{two}{one}")));
    }

    #[test]
    fn adapters_are_kept_apart_from_the_first_byte() {
        let with = |adapter: &str| key(&format!(r#"{{"text":"a prompt","lora_path":{adapter}}}"#));
        assert_eq!(with("null"), "a prompt");
        assert_ne!(with("\"one\""), with("\"two\""));
        assert!(with("[\"one\",\"two\"]").ends_with("a prompt"));
    }

    #[test]
    fn salts_keep_prompts_apart_and_usage_from_being_compared() {
        let found = |body: &str| scan(body.as_bytes(), &mut Vec::new()).bypasses_cache;
        assert_eq!(
            key(r#"{"prompt":"p","cache_salt":"s","lora_path":"ad"}"#),
            "\u{1c}\"s\"\u{1f}\"ad\"p"
        );
        for field in [
            r#""cache_salt":"s""#,
            r#""extra_key":"k""#,
            r#""logprobs":1"#,
            r#""logprobs":true"#,
            r#""prompt_logprobs":5"#,
            r#""echo":true"#,
            r#""return_logprob":true"#,
        ] {
            assert!(found(&format!(r#"{{"prompt":"p",{field}}}"#)), "{field}");
        }
        for field in [r#""logprobs":false"#, r#""echo":null"#, r#""n":2"#] {
            assert!(!found(&format!(r#"{{"prompt":"p",{field}}}"#)), "{field}");
        }
    }

    #[test]
    fn what_is_cut_off_says_so() {
        let body = br#"{"prompt":"once upon a time"}"#;
        for end in 0..=body.len() {
            let found = scan(&body[..end], &mut Vec::new());
            assert_eq!(found.is_cut, end < body.len(), "{end}");
        }
    }

    #[test]
    fn responses_and_tool_calls() {
        let body = r#"{"instructions":"I","input":[{"role":"user","content":[{"type":"input_text","text":"A"},{"type":"input_image","image_url":"http://x/y"}]},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"42"}]}"#;
        let key = key(body);
        assert!(
            key.starts_with("|I|uA\u{1d}") && key.ends_with("|{}|42"),
            "{key}"
        );
        let calls = super::tests::key(
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}"#,
        );
        assert_eq!(calls, "|a[{\"id\":\"1\"}]");
    }

    #[test]
    fn every_item_of_a_list_of_media_counts_by_itself() {
        let list = |items: &str| key(&format!(r#"{{"prompt":"p","images":{items}}}"#));
        let (a, b) = (
            format!("\"{}\"", "a".repeat(5000)),
            format!("\"data:image/png;base64,{}\"", "b".repeat(5000)),
        );
        let (one, two) = (
            list(&format!("[{a}]")),
            list(&format!("[{a}, {{\"url\":{b}}}]")),
        );
        assert_eq!((one.len(), two.len()), (18, 35));
        assert_eq!(one[..17], two[..17]);
        assert_eq!(list(&a), one);
        assert_eq!(list("null"), "p");
    }

    #[test]
    fn a_session_is_the_cache_key_before_the_user() {
        let found = scan(br#"{"prompt_cache_key":"k","user":"u"}"#, &mut Vec::new());
        assert_eq!(found.user, b"k");
        let audio = br#"{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklG","format":"wav"}}]}]}"#;
        assert!(scan(audio, &mut Vec::new()).has_media);
    }

    #[test]
    fn token_ids_and_lists_of_prompts() {
        assert_eq!(key(r#"{"prompt":[1, 22,3]}"#), "[1,22,3]");
        assert_eq!(key(r#"{"prompt":[[1, 2], [3]]}"#), "[[1,2],[3]]");
        assert_eq!(key(r#"{"prompt_token_ids": [ 1,2 ]}"#), "[1,2]");
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

    #[test]
    fn random_bodies_are_read_without_a_panic() {
        let mut rng = fastrand::Rng::with_seed(9);
        let words = [
            "{",
            "}",
            "[",
            "]",
            "\"",
            ",",
            ":",
            "\\",
            " ",
            "1",
            "null",
            "\"messages\":",
            "\"content\":",
            "\"images\":",
            "\"url\":",
            "\"prompt\":[",
            "\"lora_path\":",
            "\"data:;base64,",
            "\"role\":\"u\"",
            "\u{e9}",
        ];
        for _ in 0..50_000 {
            let mut body = "{".to_owned();
            (0..rng.usize(..24)).for_each(|_| body += words[rng.usize(..words.len())]);
            let mut text = Vec::new();
            scan(body.as_bytes(), &mut text);
            assert!(text.len() <= 2 * body.len() + 20 * body.matches(['{', '[', '"']).count());
        }
    }
}
