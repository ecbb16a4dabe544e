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
    /// The token ids that are the whole prompt, as they are written; empty if it is text, or depends on more than them.
    pub token_ids: &'a [u8],
}

/// Starts the text of a message; followed by the first letter of its role.
const MESSAGE: u8 = 0x1e;
/// Stands before the name of an adapter.
const ADAPTER: u8 = 0x1f;
/// Stands before a salt, which keeps a prompt apart from equal ones in caches.
const SALT: u8 = 0x1c;

/// Stands before each of the `SETTINGS`, whose index there follows it.
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
/// salt, the settings of the chat template, the adapter, the system prompt, tools and documents, a hash of each medium,
/// then the prompt, or each message's role and content. A system message that begins the messages is the system prompt.
/// Reads bodies of OpenAI's APIs, Anthropic's, and SGLang's `/generate`.
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
    let ids = parts.token_ids();
    found.has_media = parts.append(key);
    if !found.has_media && !found.bypasses_cache {
        found.token_ids = ids;
    }
    found
}

/// Reads a list of token ids as [`Scan`] has it. If the body was cut off, the last one may be, and is left out.
pub fn read_token_ids(written: &[u8], is_cut: bool, ids: &mut Vec<u32>) {
    ids.clear();
    let mut current = None;
    for &byte in written {
        match byte {
            b'0'..=b'9' => {
                let digit = u32::from(byte - b'0');
                current = Some(current.unwrap_or(0u32).wrapping_mul(10).wrapping_add(digit));
            }
            b'[' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' => ids.extend(current.take()),
            _ => return ids.clear(),
        }
    }
    if !is_cut {
        ids.extend(current);
    }
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

impl<'a> Parts<'a> {
    /// The prompt as it is written, if it is one list of token ids and nothing stands before it. Of a list that is cut
    /// off, what is there.
    fn token_ids(&self) -> &'a [u8] {
        let has_more = is_set(self.adapter) || self.system.is_some();
        match self.prompt {
            Some(prompt) if !has_more => prompt.numbers(),
            _ => b"",
        }
    }

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
mod tests;
